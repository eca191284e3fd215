"""A SYNTHETIC worker: a program in the place of a drawn team's worker, for one request.

It gets the prompt that a language model would get, finds in it which part of the request it is asked for,
and gives that part's result, a code, where it can do the part and was shown what the part uses; else
another code. So an answer is right exactly where the plan asked the right workers for the right parts and
passed their results on. Nobody checks what they do in the same step.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from conductor.model.call import Call
from conductor.model.reply import Reply, open_reply
from conductor.model.usage import Price, Usage
from evaluation.synthetic.skills import Assignment
from evaluation.workers.text_reply import text_reply
from serving.workers.scripted import TOKEN, prompt_tokens
from training.curriculum.about import is_about
from training.curriculum.requests import Request, RequestPart
from training.curriculum.teams import Teammate

MODEL = "synthetic-worker"
"""Reported as the model's name."""
NOTHING = "I do not see what I should do."
REPAIRS = 0.75
"""How often who checks well sets a wrong result right; a right one stays."""
_RESULT = re.compile(r"^(\d): (\w+)$", re.MULTILINE)


class PartWorker:
    """Does the parts of one request that `mate` can do; SYNTHETIC.

    Args:
        name: in the team.
        mate: what it can do.
        request: the one that it is asked about.
        id: of the request; results and errors follow from it.
        price: per token; words are counted as tokens.
    """

    provenance = "synthetic"

    def __init__(self, name: str, mate: Teammate, request: Request, id: str, price: Price | None) -> None:
        self.name, self.price = name, price
        self._mate, self._request, self._id = mate, request, id

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """See `conductor.model.worker.Worker.open`."""
        text = self.answer(Assignment.of(call))
        usage = Usage(prompt_tokens(call), len(TOKEN.findall(text)))
        return open_reply(self.name, MODEL, text_reply(text, MODEL, usage), self.price)

    def answer(self, shown: Assignment) -> str:
        """A line with a code for each part that it was asked for; the last one again, as the answer."""
        seen = {int(number): code for output in shown.outputs for number, code in _RESULT.findall(output)}
        asked, known = self._parts_of_task(shown), dict(seen)
        for number in asked:
            checks = self._request.parts[number].checks
            known[number] = self._check(number, seen) if checks else self._do(number, known)
        if not asked:
            return NOTHING
        lines = [f"{number}: {code}" for number, code in sorted(known.items())]
        return "\n".join([*lines, f"<answer>{known[asked[-1]]}</answer>"])

    def _parts_of_task(self, shown: Assignment) -> Sequence[int]:
        """The parts that the task is about; the whole request where there is no task."""
        parts = self._request.parts
        if not shown.task or len(parts) == 1:
            return range(len(parts))
        about = [number for number, part in enumerate(parts) if is_about(shown.task, part.clause)]
        checks = [number for number in about if parts[number].checks]
        return checks if checks and shown.outputs else [each for each in about if each not in checks]

    def _do(self, number: int, known: Mapping[int, str]) -> str:
        part = self._request.parts[number]
        inputs_hold = all(known.get(read) == result(self._id, read) for read in part.reads)
        return self._code(number, is_right=inputs_hold and self._can(part, number))

    def _check(self, number: int, seen: Mapping[int, str]) -> str:
        part = self._request.parts[number]
        (read,) = part.reads
        can = self._mate.kind == "critic" or self._can(part, number)
        was_right = seen.get(read) == result(self._id, read)
        repaired = read in seen and self._luck(number, "repair") < REPAIRS
        return self._code(number, is_right=can and (was_right or repaired))

    def _code(self, number: int, *, is_right: bool) -> str:
        return result(self._id, number) if is_right else _digest(self._id, number, self.name)

    def _can(self, part: RequestPart, number: int) -> bool:
        """Whether it gets the part right; of those without a field, which parts follows from request and name."""
        return self._luck(number, "luck") < self._mate.quality(part.domain)

    def _luck(self, number: int, of: str) -> float:
        """From 0 to 1; the same whenever it is asked."""
        return int(_digest(self._id, number, self.name, of), 16) / 16**8


def result(id: str, number: int) -> str:
    """The right result of a part."""
    return _digest(id, number)


def _digest(*what: object) -> str:
    return hashlib.sha256("\0".join(map(str, what)).encode()).hexdigest()[:8]
