"""A real model, replayed: says what that model once answered to the same question, and nothing else.

    - {name: o3-mini, kind: python, factory: "evaluation.workers.replay:Replay",
       options: {path: recorded.jsonl.gz, model: openai_o3-mini, usd_per_call: 0.01}}

It recognises a question by its text in the conversation, whatever subtask stands beside it. A step that reads other steps is
refused: no answer to such a prompt was ever recorded. Tokens are unknown; a cost is only what the settings declare per call.
"""

from contextlib import AbstractAsyncContextManager
from decimal import Decimal, InvalidOperation

from conductor.errors import WorkerRefused
from conductor.money import Price
from conductor.worker import Call, Reply, opened
from evaluation.errors import EvaluationError
from evaluation.answer_extraction import ANSWER_FORM
from evaluation.recordings import Recorded, key_of, read
from evaluation.workers.text_reply import said

NOTHING = "(The recorded model gave no answer.)"


class Replay:
    """A worker that replays one model of a recorded pool."""

    provenance = "replayed"

    def __init__(
        self, name: str, price: Price | None, path: str, model: str, usd_per_call: float | str | None = None
    ) -> None:
        """Knows its answers.

        Args:
            name: in the pool.
            price: per token; of no use here, for tokens are unknown.
            path: of the recorded pool; see `evaluation.recordings`.
            model: whose answers.
            usd_per_call: declared, not measured; None: the cost is unknown.

        Raises:
            ValueError: the pool cannot be read, knows no such model, or the cost is no number.
        """
        self.name, self._model, self._price = name, model, price
        try:
            self._recorded = read(path)
            self._usd_per_call = None if usd_per_call is None else Decimal(str(usd_per_call))
        except EvaluationError as exc:
            raise ValueError(exc.message) from exc
        except InvalidOperation as exc:
            raise ValueError(f"usd_per_call: {usd_per_call!r} is no number of dollars") from exc
        if not any(model in each.answers for each in self._recorded.values()):
            known = sorted({name for each in self._recorded.values() for name in each.answers})
            raise ValueError(f"model: {model!r} is not in {path}; it has {', '.join(known)}")

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """See `conductor.worker.Worker.open`.

        Raises:
            WorkerRefused: the step reads other steps, or the question or its answer was never recorded.
        """
        answer = self._found(call).answers[self._model]
        text = NOTHING if answer is None else f"<answer>{answer}</answer>"
        replied = said(text, f"{self._model} (replayed)", cost_usd=self._usd_per_call)
        return opened(self.name, f"{self._model} (replayed)", replied, self._price)

    def _found(self, call: Call) -> Recorded:
        if call.access:
            raise WorkerRefused(
                f"{self.name} replays recorded answers; none was recorded for a prompt that shows other steps. "
                "Give it steps with an empty access list.",
                worker=self.name,
            )
        user = next((m.text for m in reversed(call.messages) if m.role == "user"), "")
        found = self._recorded.get(key_of(user.partition(ANSWER_FORM)[0])) or self._recorded.get(key_of(user))
        if found is None or self._model not in found.answers:
            raise WorkerRefused(
                f"{self.name} replays {self._model}, and no answer of that model to this question was recorded.",
                worker=self.name,
            )
        return found
