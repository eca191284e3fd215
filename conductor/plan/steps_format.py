"""The format `steps`: one JSON object a step. `formats.py` shows it."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from conductor.errors import InvalidPlan, Reason
from conductor.plan.nesting import Nesting
from conductor.plan.plan import Plan, PlanBuilder, Step
from conductor.plan.step_fields import read_flag, read_step


class StepsParser:
    """`steps`: one JSON object a step, or `{"thinking": "...", "steps": [...]}` around them, with or
    without the thought; what stands between them, and inside `<think>`, is passed over.
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
        self._passed = ""
        self._thinking = False

    def feed(self, text: str) -> list[Step]:
        """See `Parser.feed`."""
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
                written = "".join(self._object)
                self._reset()
                steps += self._read(written)
        return steps

    def finish(self, *, cut_off: bool = False) -> Plan | None:
        """See `Parser.finish`."""
        index = len(self._draft.steps)
        if self._object or (cut_off and not self._accepted and index < self._draft.max_steps):
            raise InvalidPlan("The plan's text ends in the middle.", reason=Reason.TRUNCATED, step=index)
        if self._accepted:
            if self._draft.steps:
                raise self._both()
            return None
        return self._draft.finish()

    def _both(self) -> InvalidPlan:
        return InvalidPlan("The text both accepts the answer and plans steps.", reason=Reason.MALFORMED)

    def _thinks(self, char: str) -> bool:
        """Whether `char`, outside of every object, stands inside `<think>`."""
        self._passed = (self._passed + char)[-len("</think>") :]
        if self._passed.endswith(("<think>", "</think>")):
            self._thinking = not self._passed.startswith("</")
        return self._thinking

    def _opens_steps(self) -> bool:
        """Whether a bracket here begins the list of steps."""
        at_top = self._nesting.depth == 1 and not self._nesting.quote
        return at_top and self._WRAPPER.fullmatch("".join(self._object)) is not None

    def _reset(self) -> None:
        self._object, self._nesting = [], Nesting('"')

    def _read(self, written: str) -> list[Step]:
        index = len(self._draft.steps)
        try:
            fields = cast(dict[str, Any], json.loads(written))
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
