"""A SYNTHETIC worker: a program that solves a few families of synthetic questions, and declines all others.

It gets the prompt of a language model (`conductor/plan/prompts.py`, `work`): the question, the outputs its
step may see, its task. It knows nothing else, in particular no reference answer. `kind: python` in the
settings makes one::

    - {name: adder, kind: python, factory: "evaluation.synthetic.skills:Skill",
       options: {families: [arithmetic]}}
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from conductor.model.call import Call
from conductor.model.messages import Text
from conductor.model.reply import Delta, FinishReason, Reply, open_reply
from conductor.model.usage import Price, Usage
from conductor.plan.prompts import read_assignment
from evaluation.synthetic.operations import FAMILIES, RESULT, TaskPart, read
from evaluation.synthetic.questions import parts
from serving.workers.scripted import TOKEN, prompt_tokens

MODEL = "synthetic-skill"
"""Reported as the model's name."""
CANNOT = "I cannot do this"
"""How a declining output begins."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker is shown."""

    question: str
    task: str
    """Empty where there is none."""
    outputs: tuple[str, ...]
    """Of the steps it may read, in their order."""

    @classmethod
    def of(cls, call: Call) -> "Assignment":
        """Split a call's last user turn into the question and what the engine adds to it as a second part."""
        turn = next((message for message in reversed(call.messages) if message.role == "user"), None)
        texts = [part.text for part in turn.parts if isinstance(part, Text)] if turn else []
        outputs, task = read_assignment("".join(texts[1:]), call.mark_key)
        return cls("".join(texts[:1]).strip(), task, tuple(outputs))


class Skill:
    """Solves its families; SYNTHETIC.

    Args:
        name: in the pool.
        price: per token; words are counted as tokens.
        families: what it can do; all where not given.
        error_rate: the mean share of its parts that it gets wrong; which ones follows from seed and prompt.
        seed: of those errors.

    Raises:
        ValueError: a family is unknown, or the rate is not one.
    """

    provenance = "synthetic"

    def __init__(
        self,
        name: str,
        price: Price | None,
        families: Sequence[str] = FAMILIES,
        error_rate: float = 0.0,
        seed: int = 0,
    ) -> None:
        if unknown := [family for family in families if family not in FAMILIES]:
            raise ValueError(f"families has {unknown[0]!r}; there are: {', '.join(FAMILIES)}")
        if not 0 <= error_rate <= 1:
            raise ValueError(f"error_rate is {error_rate}; it must be from 0 to 1")
        self.name, self.price = name, price
        self._families, self._error_rate, self._seed = frozenset(families), error_rate, seed

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """See `conductor.model.worker.Worker.open`."""
        return open_reply(self.name, MODEL, self._deltas(call), self.price)

    async def _deltas(self, call: Call) -> AsyncGenerator[Delta]:
        await asyncio.sleep(0)
        words = TOKEN.findall(self.answer(Assignment.of(call)))
        limit = call.sampling.max_output_tokens
        kept = words if limit is None else words[:limit]
        yield Delta(text="".join(kept), model=MODEL)
        finish = FinishReason.STOP if len(kept) == len(words) else FinishReason.LENGTH
        yield Delta(finish=finish, usage=Usage(prompt_tokens(call), len(kept)), model=MODEL)

    def answer(self, shown: Assignment) -> str:
        """What it says: a result, or that it cannot, and why."""
        todo = self._parts_to_do(shown)
        if not todo:
            return f"{CANNOT}: the question asks for nothing that I know."
        results = [output.strip() for output in shown.outputs if not output.startswith(CANNOT)]
        result = results[-1] if results else None
        for index, part in enumerate(todo):
            if part.operation.family not in self._families:
                if index and todo[0].operation.family in self._families:
                    break  # the first part alone: as far as it can go
                return f"{CANNOT}: it takes {part.operation.family}."
            operand = result if part.operand == RESULT else part.operand
            if operand is None:
                return f"{CANNOT}: I was not shown the result of the part before."
            try:
                result = self._result_or_error(shown, index, part.solve(operand))
            except ValueError as exc:
                return f"{CANNOT}: {exc}."
        return result or ""

    def _parts_to_do(self, shown: Assignment) -> list[TaskPart]:
        """The parts to do: those the task names, by their words or family; without such a task all of them.

        Of a whole question, a first part that another step has solved is skipped.
        """
        whole = [part for words in parts(shown.question) if (part := read(words))]
        own = read(shown.task)
        if own:
            return [own]
        named = [part for part in whole if part.operation.family in shown.task.lower()]
        if named:
            return named
        done = any(not output.startswith(CANNOT) for output in shown.outputs)
        return whole[1:] if done and len(whole) > 1 else whole

    def _result_or_error(self, shown: Assignment, index: int, result: str) -> str:
        """`result`, or something similar where this is one of the parts that it gets wrong."""
        # Spelled out, whatever the class is called: published figures depend on which parts go wrong.
        prompt = f"Shown(question={shown.question!r}, task={shown.task!r}, outputs={shown.outputs!r})"
        digest = hashlib.sha256(f"{self._seed}\0{self.name}\0{index}\0{prompt}".encode()).digest()
        if int.from_bytes(digest[:8]) >= self._error_rate * 2**64:
            return result
        if result in ("yes", "no"):
            return "no" if result == "yes" else "yes"
        return str(int(result) + 1 + digest[8] % 9) if result.isdigit() else result[1:] + result[0] + "e"
