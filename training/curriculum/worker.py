"""A SYNTHETIC worker: a program that stands in for a worker of a drawn team, for one request.

It gets the prompt that a language model would get, and finds the part of the request that it should do. If it
can do the part and was shown the inputs, its output is the part's result, which is a code. Otherwise, its
output is another code. An answer is therefore right exactly if the plan chose the right workers for the right
parts and passed on their results. A result can only be checked in a later step.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.reply import Reply
from conductor.model.usage import Price, Usage
from evaluation.synthetic.skills import Assignment
from evaluation.workers.replay import text_reply
from serving.workers.scripted import TOKEN, prompt_tokens
from training.curriculum.relevance import is_about
from training.curriculum.requests import Request, RequestPart
from training.curriculum.teams import Teammate

MODEL = "synthetic-worker"
"""Model name that is reported."""
NOTHING = "I do not see what I should do."
REPAIRS = 0.75
"""Probability that a worker that checks well corrects a wrong result. It never changes a right one."""
_RESULT = re.compile(r"^(\d): (\w+)$", re.MULTILINE)


class PartWorker:
    """SYNTHETIC worker that does the parts of a request that `mate` can do. Words count as tokens. `id`
    determines results and errors.
    """

    provenance = "synthetic"

    def __init__(self, name: str, mate: Teammate, request: Request, id: str, price: Price | None) -> None:
        self.name, self.price = name, price
        self._mate, self._request, self._id = mate, request, id

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        text = self.answer(Assignment.of(call))
        usage = Usage(prompt_tokens(call), len(TOKEN.findall(text)))
        return open_reply(self.name, MODEL, text_reply(text, MODEL, usage), self.price)

    def answer(self, assignment: Assignment) -> str:
        """Return a line with a code for each part of the task, and the last code again as the answer."""
        input_codes = {
            int(number): code for output in assignment.outputs for number, code in _RESULT.findall(output)
        }
        parts, codes = self._parts_of_task(assignment), dict(input_codes)
        for number in parts:
            checks = self._request.parts[number].checks
            codes[number] = self._check(number, input_codes) if checks else self._do(number, codes)
        if not parts:
            return NOTHING
        lines = [f"{number}: {code}" for number, code in sorted(codes.items())]
        return "\n".join([*lines, f"<answer>{codes[parts[-1]]}</answer>"])

    def _parts_of_task(self, assignment: Assignment) -> Sequence[int]:
        """Return the parts that the task is about, or all of them if there is no task."""
        parts = self._request.parts
        if not assignment.task or len(parts) == 1:
            return range(len(parts))
        about = [number for number, part in enumerate(parts) if is_about(assignment.task, part.clause)]
        checks = [number for number in about if parts[number].checks]
        return checks if checks and assignment.outputs else [each for each in about if each not in checks]

    def _do(self, number: int, codes: Mapping[int, str]) -> str:
        part = self._request.parts[number]
        inputs_hold = all(codes.get(read) == result(self._id, read) for read in part.reads)
        return self._code(number, is_right=inputs_hold and self._can(part, number))

    def _check(self, number: int, input_codes: Mapping[int, str]) -> str:
        part = self._request.parts[number]
        (read,) = part.reads
        can = self._mate.kind == "critic" or self._can(part, number)
        was_right = input_codes.get(read) == result(self._id, read)
        repaired = read in input_codes and self._luck(number, "repair") < REPAIRS
        return self._code(number, is_right=can and (was_right or repaired))

    def _code(self, number: int, *, is_right: bool) -> str:
        return result(self._id, number) if is_right else _digest(self._id, number, self.name)

    def _can(self, part: RequestPart, number: int) -> bool:
        """Return whether the worker does the part correctly, without a field at random by request and name."""
        return self._luck(number, "luck") < self._mate.quality(part.domain)

    def _luck(self, number: int, of: str) -> float:
        """Return a reproducible number from 0 to 1."""
        return int(_digest(self._id, number, self.name, of), 16) / 16**8


def result(id: str, number: int) -> str:
    return _digest(id, number)


def _digest(*what: object) -> str:
    return hashlib.sha256("\0".join(map(str, what)).encode()).hexdigest()[:8]
