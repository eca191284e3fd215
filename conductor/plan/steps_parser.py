"""Parser that reads the `steps` format of plans while it streams."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from msgspec.structs import replace

from conductor.errors import InvalidPlan, Reason
from conductor.plan.plan import Plan, PlanBuilder, Step, read_flag, read_step


@dataclass(slots=True)
class Nesting:
    """Bracket depth of a text that is read character by character. Brackets in strings do not count."""

    quotes: str
    depth: int = 0
    quote: str = ""
    escaped: bool = False

    def feed(self, char: str) -> None:
        if self.quote:
            if self.escaped:
                self.escaped = False
            elif char == "\\":
                self.escaped = True
            elif char == self.quote:
                self.quote = ""
        elif char in self.quotes:
            self.quote = char
        elif char in "[{(":
            self.depth += 1
        elif char in "]})":
            self.depth -= 1


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
