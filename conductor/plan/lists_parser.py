"""Parser that reads the `lists` format of plans while it streams."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from conductor.errors import InvalidPlan, Reason
from conductor.plan.plan import Plan, PlanBuilder, Step, read_step
from conductor.plan.steps_parser import Nesting


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
    """Parser of the `lists` format: free reasoning, then `model_id`, `subtasks` and `access_list`.

    The first step reads nothing, and starts once its subtask is complete. Others start with their access
    list.
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

    def _opens(self, next_list: _List) -> bool:
        thinking = "<think>" in self._text and "</think>" not in self._text
        matches = [] if thinking else list(next_list.label.finditer(self._text[-LABEL_CHARS:]))
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
                "Step 0 cannot read another step, because it is the first one.",
                reason=Reason.READS_FORWARD,
                step=0,
            )
        return []
