"""Parsers that turn a conductor's text into steps while it streams."""

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

from msgspec.structs import replace

from conductor.errors import InvalidPlan, Reason
from conductor.plan.plan import Nesting, Plan, PlanBuilder, Step, read_flag, read_step


class StepsParser:
    """Parser of the `steps` format: one JSON object per step.

    The objects may be inside `{"thinking": "...", "steps": [...]}`, where `thinking` is optional. Text between
    the objects, and inside `<think>`, is ignored.
    """

    _WRAPPER = re.compile(
        r'\{\s*(?:(?:"accept"\s*:\s*false|"thinking"\s*:\s*"(?:[^"\\]|\\.)*")\s*,\s*)*"steps"\s*:\s*',
        re.DOTALL,
    )

    def __init__(self, workers: Sequence[str], max_steps: int) -> None:
        self._draft = PlanBuilder(workers, max_steps)
        self._workers = workers
        self._accepted = False
        self._object: list[str] = []
        self._nesting = Nesting('"')
        self._tail = ""
        self._thinking = False

    def feed(self, text: str) -> list[Step]:
        steps: list[Step] = []
        for char in text:
            if not self._object and (self._thinks(char) or char != "{"):
                continue
            if char == "[" and self._opens_steps():
                self._reset()
                continue
            self._object.append(char)
            self._nesting.feed(char)
            if self._nesting.depth == 0:
                text = "".join(self._object)
                self._reset()
                steps += self._read(text)
        return steps

    def finish(self, *, cut_off: bool = False) -> Plan | None:
        index = len(self._draft.steps)
        if self._object or (cut_off and not self._accepted and index < self._draft.max_steps):
            raise InvalidPlan("The plan's text is cut off.", reason=Reason.TRUNCATED, step=index)
        if self._accepted:
            if self._draft.steps:
                raise self._both()
            return None
        return self._draft.finish()

    def _both(self) -> InvalidPlan:
        return InvalidPlan("The text both accepts the answer and plans steps.", reason=Reason.MALFORMED)

    def _thinks(self, char: str) -> bool:
        """Return whether `char`, which is outside all objects, is inside `<think>`."""
        self._tail = (self._tail + char)[-len("</think>") :]
        if self._tail.endswith(("<think>", "</think>")):
            self._thinking = not self._tail.startswith("</")
        return self._thinking

    def _opens_steps(self) -> bool:
        """Return whether a bracket at this point opens the list of steps."""
        at_top = self._nesting.depth == 1 and not self._nesting.quote
        return at_top and self._WRAPPER.fullmatch("".join(self._object)) is not None

    def _reset(self) -> None:
        self._object, self._nesting = [], Nesting('"')

    def _read(self, text: str) -> list[Step]:
        index = len(self._draft.steps)
        try:
            fields = cast(dict[str, Any], json.loads(text))
        except (ValueError, RecursionError) as exc:
            raise InvalidPlan(
                f"Step {index} is not JSON: {exc}.", reason=Reason.MALFORMED, step=index
            ) from exc
        if fields.get("accept") is True:
            if fields.get("steps"):
                raise self._both()
            self._accepted = True
            return []
        for name in ("worker", "subtask", "access"):
            if name not in fields:
                raise InvalidPlan(f"Step {index} has no {name!r}.", reason=Reason.MISSING_FIELD, step=index)
        worker, subtask, access = (fields[name] for name in ("worker", "subtask", "access"))
        step = read_step(index, worker, subtask, access, self._workers, fields.get("needs", ""))
        return [self._draft.add(replace(step, tools=read_flag(index, "tools", fields.get("tools", True))))]


@dataclass(slots=True)
class _List:
    """One of the three lists while it is read. `elements` contains only complete elements."""

    label: re.Pattern[str]
    elements: list[Any] = field(default_factory=list[Any])
    element: list[str] = field(default_factory=list[str])
    nesting: Nesting = field(default_factory=lambda: Nesting("\"'", depth=1))
    closed: bool = False

    def feed(self, char: str) -> bool:
        """Add a character after the opening bracket. Return True if it completes an element."""
        at_top = self.nesting.depth == 1 and not self.nesting.quote
        if at_top and char == ",":
            return self._complete(must=True)
        self.nesting.feed(char)
        if self.nesting.depth == 0:
            if char != "]":
                raise InvalidPlan(
                    f"A list ends with {char!r} instead of ']'.",
                    reason=Reason.MALFORMED,
                    step=len(self.elements),
                )
            self.closed = True
            return self._complete(must=False)
        self.element.append(char)
        return False

    def _complete(self, must: bool) -> bool:
        text, self.element = "".join(self.element).strip(), []
        if not text and not must:
            return False
        try:
            self.elements.append(_literal(text))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as exc:
            index = len(self.elements)
            raise InvalidPlan(
                f"{text[:80]!r} is not a Python literal.", reason=Reason.MALFORMED, step=index
            ) from exc
        return True


def _literal(text: str) -> Any:
    """Return the value of a Python literal. Raises what `ast.literal_eval` raises.

    Up to Python 3.11.7, parsing fails with a SystemError if other code parses in the middle of it, such as
    the traceback of a future that is garbage collected (python/cpython#106905). The second attempt succeeds.
    """
    try:
        return ast.literal_eval(text)
    except SystemError:
        return ast.literal_eval(text)


LABEL_CHARS = 80
"""Maximum length of a list's name with its separator and opening bracket, in characters."""


def _label(*names: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{'|'.join(names)})`?\s*[:=]\s*\[", re.IGNORECASE)


class ListsParser:
    """Parser of the `lists` format: free reasoning (also inside `<think>`), then `model_id`, `subtasks` and
    `access_list`.

    The first step reads nothing, so it starts as soon as its subtask is complete. Each later step starts when
    its access list is complete.
    """

    def __init__(self, workers: Sequence[str], max_steps: int) -> None:
        self._draft = PlanBuilder(workers, max_steps)
        self._workers = workers
        self._text = ""
        self._models = _List(_label("model[_ ]ids?"))
        self._subtasks = _List(_label("subtasks?"))
        self._access = _List(_label("access[_ ]lists?", "access"))
        self._todo = [self._models, self._subtasks, self._access]
        self._inside = False

    def feed(self, text: str) -> list[Step]:
        steps: list[Step] = []
        for char in text:
            if not self._todo:
                break
            if self._inside:
                if self._todo[0].feed(char):
                    steps += self._read_newest(self._todo[0])
                if self._todo[0].closed:
                    self._check_length(self._todo.pop(0))
                    self._inside, self._text = False, ""
            else:
                self._text += char
                if char == "[":
                    self._inside = self._opens(self._todo[0])
        return steps

    def finish(self, *, cut_off: bool = False) -> Plan | None:
        if self._todo:
            has_begun = self._inside or len(self._todo) < 3 or cut_off
            raise InvalidPlan(
                "The plan's text ends before its three lists are complete."
                if has_begun
                else "The text has no plan.",
                reason=Reason.TRUNCATED if has_begun else Reason.NO_PLAN,
                step=len(self._draft.steps),
            )
        return self._draft.finish() if self._models.elements else None

    def _opens(self, wanted: _List) -> bool:
        thinking = "<think>" in self._text and "</think>" not in self._text
        matches = [] if thinking else list(wanted.label.finditer(self._text[-LABEL_CHARS:]))
        return bool(matches) and self._text.endswith(matches[-1].group())

    def _check_length(self, closed: _List) -> None:
        count, expected = len(closed.elements), len(self._models.elements)
        if count != expected:
            raise InvalidPlan(
                f"The lists differ in length: one has {expected} models, another has {count} elements.",
                reason=Reason.LENGTH_MISMATCH,
                step=min(count, expected),
            )

    def _read_newest(self, grown: _List) -> list[Step]:
        """Check the list's newest element. Return the step that it completes, if any."""
        index = len(grown.elements) - 1
        if grown is self._models:
            if index >= self._draft.max_steps:
                message = f"The plan has more than {self._draft.max_steps} steps."
                raise InvalidPlan(message, reason=Reason.TOO_MANY_STEPS, step=index)
            return []
        if index >= len(self._models.elements):
            self._check_length(grown)
        worker = self._models.elements[index]
        if grown is self._subtasks:
            first = read_step(0, worker, grown.elements[0], [], self._workers) if index == 0 else None
            return [self._draft.add(first)] if first else []
        access = grown.elements[index]
        step = read_step(index, worker, self._subtasks.elements[index], access, self._workers)
        if index > 0:
            return [self._draft.add(step)]
        if step.access:
            raise InvalidPlan(
                "Step 0 reads a step; there is none before it.", reason=Reason.READS_FORWARD, step=0
            )
        return []


Format = Literal["steps", "lists"]


class Parser(Protocol):
    """Parser of one plan whose text arrives in parts."""

    def feed(self, text: str) -> list[Step]:
        """Parse the next part of the text. Return the steps that it completes, checked and ready to start.

        Raises:
            InvalidPlan: the text can no longer become a plan that can run.
        """
        ...

    def finish(self, *, cut_off: bool = False) -> Plan | None:
        """End the text. Return the whole plan, or None if the text accepts the answer of the previous round.

        Args:
            cut_off: whether the text ends because the model ran out of tokens.

        Raises:
            InvalidPlan: the text ended too early, or contains no plan.
        """
        ...


def parser(format: Format, workers: Sequence[str], max_steps: int) -> Parser:
    """Return a new parser of `format`. Workers are numbered in the order of `workers`."""
    return StepsParser(workers, max_steps) if format == "steps" else ListsParser(workers, max_steps)
