"""SYNTHETIC worker: a program that solves some families of synthetic questions and declines all others.

It gets the prompt of a language model (`conductor/plan/prompts.py`, `work`): the question, the outputs that
its step may read, and its task. It has no other information, in particular no reference answer. Settings with
`kind: python` create one::

    - {name: adder, kind: python, factory: "evaluation.synthetic.skills:Skill",
       options: {families: [arithmetic]}}
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.messages import Text
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.usage import Price, Usage
from conductor.plan.prompts import read_assignment
from evaluation.synthetic.operations import FAMILIES, RESULT, TaskPart, read
from evaluation.synthetic.questions import parts
from serving.workers.scripted import TOKEN, prompt_tokens

MODEL = "synthetic-skill"
"""Model name that the worker reports."""
CANNOT = "I cannot do this"
"""Beginning of an output in which the worker declines the task."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Content of a worker's prompt."""

    question: str
    task: str
    """The subtask, or "" if there is none."""
    outputs: tuple[str, ...]
    """Outputs of the steps that the worker may read, in their order."""

    @classmethod
    def of(cls, call: Call) -> "Assignment":
        """Read the assignment from the question and the engine's part in a call's last user turn."""
        turn = next((message for message in reversed(call.messages) if message.role == "user"), None)
        texts = [part.text for part in turn.parts if isinstance(part, Text)] if turn else []
        outputs, task = read_assignment("".join(texts[1:]), call.mark_key)
        return cls("".join(texts[:1]).strip(), task, tuple(outputs))


class Skill:
    """SYNTHETIC worker that solves the parts of questions that belong to its families.

    Args:
        price: the price per token. Words count as tokens.
        error_rate: the mean share of parts that it gets wrong. The seed and the prompt determine which ones.
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
            raise ValueError(f"unknown family {unknown[0]!r}. Choose from: {', '.join(FAMILIES)}")
        if not 0 <= error_rate <= 1:
            raise ValueError(f"error_rate must be between 0 and 1, not {error_rate}")
        self.name, self.price = name, price
        self._families, self._error_rate, self._seed = frozenset(families), error_rate, seed

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_reply(self.name, MODEL, self._deltas(call), self.price)

    async def _deltas(self, call: Call) -> AsyncGenerator[Delta]:
        await asyncio.sleep(0)
        words = TOKEN.findall(self.answer(Assignment.of(call)))
        limit = call.sampling.max_output_tokens
        output = words if limit is None else words[:limit]
        yield Delta(text="".join(output), model=MODEL)
        finish = FinishReason.STOP if len(output) == len(words) else FinishReason.LENGTH
        yield Delta(finish=finish, usage=Usage(prompt_tokens(call), len(output)), model=MODEL)

    def answer(self, assignment: Assignment) -> str:
        """Return a result, or an explanation of why the worker cannot give one."""
        todo = self._parts_to_do(assignment)
        if not todo:
            return f"{CANNOT}: the question asks for nothing that I know."
        results = [output.strip() for output in assignment.outputs if not output.startswith(CANNOT)]
        result = results[-1] if results else None
        for index, part in enumerate(todo):
            if part.operation.family not in self._families:
                if index and todo[0].operation.family in self._families:
                    break  # only the first part is among its families
                return f"{CANNOT}: it takes {part.operation.family}."
            operand = result if part.operand == RESULT else part.operand
            if operand is None:
                return f"{CANNOT}: I was not shown the result of the part before."
            try:
                result = self._result_or_error(assignment, index, part.solve(operand))
            except ValueError as exc:
                return f"{CANNOT}: {exc}."
        return result or ""

    def _parts_to_do(self, assignment: Assignment) -> list[TaskPart]:
        """Return the parts that the task names, or all except a first one that another step has solved."""
        whole = [part for words in parts(assignment.question) if (part := read(words))]
        own = read(assignment.task)
        if own:
            return [own]
        named = [part for part in whole if part.operation.family in assignment.task.lower()]
        if named:
            return named
        has_result = any(not output.startswith(CANNOT) for output in assignment.outputs)
        return whole[1:] if has_result and len(whole) > 1 else whole

    def _result_or_error(self, assignment: Assignment, index: int, result: str) -> str:
        """Return `result`, or a similar but wrong one if the worker gets this part wrong."""
        # Fixed text, independent of the class's name: published figures depend on which parts go wrong.
        prompt = f"Shown(question={assignment.question!r}, task={assignment.task!r}, outputs={assignment.outputs!r})"
        digest = hashlib.sha256(f"{self._seed}\0{self.name}\0{index}\0{prompt}".encode()).digest()
        if int.from_bytes(digest[:8]) >= self._error_rate * 2**64:
            return result
        if result in ("yes", "no"):
            return "no" if result == "yes" else "yes"
        return str(int(result) + 1 + digest[8] % 9) if result.isdigit() else result[1:] + result[0] + "e"
