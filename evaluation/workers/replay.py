"""Worker that replays a real model: it returns that model's recorded answer to the same question.

    - {name: o3-mini, kind: python, factory: "evaluation.workers.replay:Replay",
       options: {path: recorded.jsonl.gz, model: openai_o3-mini, usd_per_call: 0.01}}

It recognises a question by its text in the conversation, whatever the subtask. It rejects a step that reads
other steps, because no answer to such a prompt was recorded. Tokens are unknown. The cost is what the
settings declare per call.
"""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from decimal import Decimal, InvalidOperation

from conductor.errors import WorkerRefused
from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.usage import Price, Usage
from evaluation import EvaluationError
from evaluation.answer_extraction import ANSWER_FORM
from evaluation.recordings import key_of, read_recordings

NO_ANSWER = "(The recorded model gave no answer.)"


class Replay:
    """Worker that replays one model of a recorded pool."""

    provenance = "replayed"

    def __init__(
        self, name: str, price: Price | None, path: str, model: str, usd_per_call: float | str | None = None
    ) -> None:
        """Load the answers of `model` from a recorded pool. `price` is unused, because tokens are unknown."""
        self.name, self._model, self._price = name, model, price
        try:
            self._recordings = read_recordings(path)
            self._usd_per_call = None if usd_per_call is None else Decimal(str(usd_per_call))
        except EvaluationError as exc:
            raise ValueError(exc.message) from exc
        except InvalidOperation as exc:
            raise ValueError(f"usd_per_call: {usd_per_call!r} is not an amount in US dollars") from exc
        models = {name for each in self._recordings.values() for name in each.models}
        if model not in models:
            raise ValueError(f"model: {model!r} is not in {path}. Choose from {', '.join(sorted(models))}")

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """Reply with the recorded answer. Raise WorkerRefused if there is none, or if the step reads others."""
        answer = self._find_answer(call)
        text = NO_ANSWER if answer is None else f"<answer>{answer}</answer>"
        model = f"{self._model} (replayed)"
        deltas = text_reply(text, model, cost_usd=self._usd_per_call)
        return open_reply(self.name, model, deltas, self._price)

    def _find_answer(self, call: Call) -> str | None:
        if call.site.access:
            raise WorkerRefused(
                f"{self.name} replays recorded answers, and none was recorded for prompts that show other "
                "steps. Give its steps an empty access list.",
                worker=self.name,
            )
        user = next((m.text for m in reversed(call.messages) if m.role == "user"), "")
        question = self._recordings.get(key_of(user.partition(ANSWER_FORM)[0]))
        question = question or self._recordings.get(key_of(user))
        if question is None or self._model not in question.models:
            raise WorkerRefused(
                f"{self.name} replays {self._model}, and no answer of that model to this question was "
                "recorded.",
                worker=self.name,
            )
        return question.models[self._model].a


async def text_reply(
    text: str, model: str, usage: Usage | None = None, cost_usd: Decimal | None = None
) -> AsyncGenerator[Delta]:
    """Yield the text of a worker that is a program: the whole text as one delta, then the end."""
    yield Delta(text, model=model)
    yield Delta(finish=FinishReason.STOP, usage=usage, cost_usd=cost_usd, model=model)
