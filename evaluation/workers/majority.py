"""Worker that votes: a program that returns the most frequent answer among the outputs it reads.

    - {name: vote, kind: python, factory: "evaluation.workers.majority:Majority",
       card: "Counts votes; give it steps to read."}

An answer is the text between `<answer>` tags. An output is the text inside the prompt's own marks, so that a
mark in the text of a user or worker cannot vote.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from conductor.errors import WorkerRefused
from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.reply import Reply
from conductor.model.usage import FREE, Price, Usage
from conductor.plan.prompts import read_assignment
from evaluation.answer_extraction import answer_tag
from evaluation.workers.replay import text_reply


class Majority:
    provenance = "program"

    def __init__(self, name: str, price: Price | None = FREE) -> None:
        self.name, self._price = name, price or FREE

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """Reply with the majority answer. Raise WorkerRefused if the step reads no outputs."""
        user = next((m.text for m in reversed(call.messages) if m.role == "user"), "")
        outputs = read_assignment(user, call.mark_key)[0]
        if not outputs:
            raise WorkerRefused(
                f"{self.name} is a program that counts the votes of earlier steps. "
                "Give its step an access list.",
                worker=self.name,
            )
        answers = [answer_tag(output) for output in outputs]
        winner = majority(answers)
        text = (
            "(No output contains an <answer> tag.)"
            if winner is None
            else f"<answer>{answers[winner]}</answer>"
        )
        model = "majority (program)"
        return open_reply(self.name, model, text_reply(text, model, Usage()), self._price)


def majority(answers: Sequence[str | None]) -> int | None:
    """Return the index of the first most frequent answer, or None. Answers are compared by words, ignoring
    case.
    """
    votes = [None if answer is None else " ".join(answer.split()).casefold() for answer in answers]
    counts = Counter(vote for vote in votes if vote is not None)
    return votes.index(max(counts, key=counts.__getitem__)) if counts else None
