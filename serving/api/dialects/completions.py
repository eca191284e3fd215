"""OpenAI's Completions as a dialect. The prompt goes to one worker unchanged, without a chat template.

Wire format: https://platform.openai.com/docs/api-reference/completions. A stream is encoded like that of a
chat, but its chunks differ.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any, cast

from msgspec.structs import replace
from pydantic import Field, field_validator

from conductor.model.call import Sampling
from conductor.model.messages import PendingCall
from conductor.model.operation import TokenLogprob, tokens_text
from conductor.model.reply import FinishReason
from conductor.run.events import AnswerDelta, Event
from conductor.run.record import RunRecords
from conductor.run.run import Run
from serving.api.dialect import CallId, Dialect
from serving.api.dialects.chat.dialect import ChatEncoder
from serving.api.dialects.chat.schema import (
    MOST_CHOICES,
    NotedFields,
    SamplerFields,
    StopField,
    StreamOptions,
    TierFields,
    WireFields,
)
from serving.api.dialects.prompts import Prompts, messages
from serving.api.dialects.read_body import read_body
from serving.api.record_json import model_name, summary, usage
from serving.api.request import MOST, ApiRequest, PodiumField

USUAL_TOKENS = 16
"""OpenAI's default for `max_tokens`."""


class CompletionRequest(WireFields, SamplerFields, TierFields, NotedFields):
    """Body of `POST /v1/completions`."""

    model: str
    prompt: Prompts
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MOST)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stop: StopField = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    podium: PodiumField

    @field_validator("echo", "suffix")
    @classmethod
    def _is_not_served(cls, value: bool | str | None) -> bool | str | None:
        if value:
            raise ValueError("is not supported, and ignoring it would change the answer. Remove it")
        return value

    @field_validator("best_of")
    @classmethod
    def _is_one(cls, value: int | None) -> int | None:
        if value not in (None, 0, 1):
            raise ValueError("must be 1. Use `n` to get several answers")
        return value


class CompletionsDialect(Dialect):
    """OpenAI's Completions."""

    def parse(self, body: bytes) -> ApiRequest:
        request = read_body(CompletionRequest, body)
        prompts = cast(list[str] | list[list[int]], request.prompt)
        first, *more = messages([each if isinstance(each, str) else tokens_text(each) for each in prompts])
        has_tokens = not isinstance(prompts[0], str)
        return ApiRequest(
            model=request.model,
            conversation=(first,),
            sampling=Sampling(
                max_output_tokens=request.max_tokens or USUAL_TOKENS,
                temperature=request.temperature,
                top_p=request.top_p,
                stop=tuple(request.stop or ()),
                seed=request.seed,
                options=replace(
                    request.penalties, top_logprobs=request.logprobs, token_prompt=has_tokens or None
                ),
                **request.samplers,
            ),
            effort=None,
            podium=request.podium,
            stream=bool(request.stream),
            include_usage=request.stream_options is not None and request.stream_options.include_usage,
            operation="text_completion",
            n=request.n or 1,
            more=tuple((each,) for each in more),
            priority=request.priority,
            left_out=request.noted,
        )

    def body(self, records: RunRecords, request: ApiRequest, call_id: CallId) -> dict[str, Any]:
        record = records.record
        likely = record.answering.logprobs if record.answering else ()
        finish = record.finish.value if record.finish else "stop"
        return {
            "id": completion_id(record.id),
            "object": "text_completion",
            "created": int(record.created),
            "model": model_name(record),
            "choices": [text_choice(record.answer, text_logprobs_json(likely), finish)],
            "usage": usage(record),
            "podium": summary(record, records.inner, trace=request.podium.trace),
        }

    def encoder(self, run: Run, request: ApiRequest, call_id: CallId) -> "CompletionEncoder":
        return CompletionEncoder(run, request, call_id)


class CompletionEncoder(ChatEncoder):
    """Encoder of a stream of OpenAI's Completions: like that of a chat, but its chunks differ."""

    def __init__(self, run: Run, request: ApiRequest, call_id: CallId) -> None:
        super().__init__(run, request, call_id)
        self.head |= {"id": completion_id(run.record.id), "object": "text_completion"}
        self._length = 0

    def begin(self) -> bytes:
        """Return nothing: the format has no role."""
        return b""

    def _answer(self, piece: AnswerDelta) -> bytes:
        likely = text_logprobs_json(piece.logprobs, self._length)
        self._length += len(piece.text)
        return self.chunk({"choices": [text_choice(piece.text, likely, None)]}) if piece.text else b""

    def _finish(self, finish: FinishReason) -> bytes:
        return self.last_chunks(text_choice("", None, finish.value))

    def _suspend(self, calls: tuple[PendingCall, ...]) -> bytes:
        return b""

    def _progress(self, event: Event) -> bytes:
        self._name_worker(event)
        return b""


def text_choice(text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
    """Return a choice in the format of OpenAI's Completions."""
    return {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}


def completion_id(workflow_id: str) -> str:
    """Return OpenAI's id for the answer of a run."""
    return "cmpl-" + workflow_id.removeprefix("wf_")


def text_logprobs_json(tokens: Sequence[TokenLogprob], begins_at: int = 0) -> dict[str, Any] | None:
    """Return `logprobs` of a choice, or None. `begins_at` is the number of characters before `tokens`."""
    if not tokens:
        return None
    offsets = accumulate((len(each.token) for each in tokens), initial=begins_at)
    return {
        "tokens": [each.token for each in tokens],
        "token_logprobs": [each.logprob for each in tokens],
        "top_logprobs": [{other.token: other.logprob for other in each.top} for each in tokens],
        "text_offset": [*offsets][:-1],
    }
