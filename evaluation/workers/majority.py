"""A voter, which is a program and no model: reads the outputs that its step may see and gives the answer most of them give.

    - {name: vote, kind: python, factory: "evaluation.workers.majority:Majority", card: "Counts votes; give it steps to read."}

Answers are what stands between `<answer>` marks, compared word by word; of equally frequent ones the earliest wins.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from conductor.errors import WorkerRefused
from conductor.money import FREE, Price, Usage
from conductor.prompts import read_assignment
from conductor.worker import Call, Reply, opened
from evaluation.answer_extraction import tagged
from evaluation.workers.text_reply import said


class Majority:
    """A worker that votes."""

    provenance = "program"

    def __init__(self, name: str, price: Price | None = FREE) -> None:
        self.name, self._price = name, price or FREE

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """See `conductor.worker.Worker.open`.

        Raises:
            WorkerRefused: there is nothing to vote on.
        """
        user = next((m.text for m in reversed(call.messages) if m.role == "user"), "")
        outputs = read_assignment(user)[0] if call.access else []
        if not outputs:
            raise WorkerRefused(
                f"{self.name} is a program that counts the votes of earlier steps; give its step an access list.",
                worker=self.name,
            )
        answer = majority([tagged(output) for output in outputs])
        text = "(No output holds an answer.)" if answer is None else f"<answer>{answer}</answer>"
        return opened(self.name, "majority (program)", said(text, "majority (program)", Usage()), self._price)


def majority(answers: Sequence[str | None]) -> str | None:
    """The most frequent answer, the earliest of several such; None where nobody gave one."""
    given = [answer for answer in answers if answer is not None]
    if not given:
        return None
    counted = Counter(_key(answer) for answer in given)
    return max(given, key=lambda answer: counted[_key(answer)])


def _key(answer: str) -> str:
    return " ".join(answer.split()).casefold()
