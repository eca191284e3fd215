"""A model's answer: the deltas that stream, the answer so far, and its cost.

A call never costs less than the plausible usage that the server reported (decisions 0018, 0031, 0065).
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from msgspec.structs import replace

from conductor.errors import ContentFiltered, WorkerError, WorkerUnavailable
from conductor.model.characters import byte_size, whole
from conductor.model.failure import Attempt
from conductor.model.messages import Native, ToolCall
from conductor.model.operation import TokenLogprob
from conductor.model.terms import Callee, LikelyPrompt
from conductor.model.usage import FREE, Meter, Price, Usage, cost_of, dearer, estimate_answer, unseen_bytes
from conductor.model.value import Value

MODEL_CHARS = 200
"""Maximum length of a model name that a server reports, in characters. The rest is cut off."""
MOST_USD = Decimal(1_000_000)
"""Largest plausible cost of a call. A higher cost that a worker reports is ignored."""
MOST_CHARS = 20_000
"""Maximum length of a delta's text, in characters. Longer ones are split, because readers search each of them, and
other tasks run in between."""


class FinishReason(StrEnum):
    """Reason why a model stopped, with OpenAI's values."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    TOOL_CALLS = "tool_calls"
    """The model waits for tool results."""


class Delta(Value, frozen=True):
    """Next piece of an answer. The last delta has `finish`, and `usage` if the server reports it.

    `usage` is a running total, so a later value replaces an earlier one.
    """

    text: str = ""
    reasoning: str = ""
    """Reasoning that the model shows separately from its answer."""
    finish: FinishReason | None = None
    usage: Usage | None = None
    cost_usd: Decimal | None = None
    """Cost of the call so far as the server reports it. It takes precedence over a price list."""
    model: str | None = None
    """Name of the model as the server reports it."""
    inner_run: str | None = None
    """Id of the run that answered, if the worker is a team itself."""
    notes: tuple[str, ...] = ()
    """New notes for the record. See `CallResult.notes`."""
    billed_at_bound: bool = False
    """True to bill the most that the call can use, because the server reported no plausible usage. `notes` say
    why."""
    cost_is_bound: bool = False
    """True if `cost_usd` is an upper bound, according to the server."""
    pieces: int = 1
    """Number of server chunks that were merged into this delta."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Tool calls that this delta completes. Partial calls are never passed on."""
    native: Native | None = None
    """Complete turn as the provider wrote it. Set on the last delta if it must be sent back unchanged."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Log probabilities of the tokens in `text`, if they were requested."""
    stop_sequence: str | None = None
    """Stop sequence that ended the answer, if the server reports it."""


class CallResult(Value, frozen=True):
    """Answer of a call, with its usage and cost."""

    output: str
    worker: str
    """Worker that answered: the one that was called, or the one that it failed over to."""
    model: str
    usage: Usage | None
    cost_usd: Decimal | None
    """Cost of the call, or None if it is unknown."""
    finish: FinishReason | None
    attempts: tuple[Attempt, ...] = ()
    """Calls that failed before this one, oldest first."""
    reasoning: str = ""
    inner_run: str | None = None
    """Id of the run that answered, if the worker is a team itself. That run has its own record."""
    notes: tuple[str, ...] = ()
    """Notes on changes to the call and on implausible reports. For the record, never for the answer."""
    cost_is_bound: bool = False
    """True if `cost_usd` is an upper bound. `notes` say why the cost is not known."""
    deployment: str = ""
    """Deployment that answered. Empty if the worker has only one."""
    span: str = ""
    """Id of the call's span, in hexadecimal. Empty if tracing is off."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Tool calls, with the provider's ids. The finish reason is then `tool_calls`."""
    native: Native | None = None
    """Turn as the provider wrote it. See `Native`."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Log probabilities of the tokens in `output`, if they were requested."""
    stop_sequence: str | None = None
    """See `Delta.stop_sequence`."""
    saved_usd: Decimal | None = None
    """What the provider's cache saved (see `Price.savings`), or None if the price or the usage is unknown."""


@dataclass(slots=True)
class Reply:
    """An answer that is streaming. Iterate over its deltas once. `result` returns the answer so far at any time.

    Raises (while iterating):
        WorkerUnavailable: the stream broke, or ended without a finish reason. The deltas before that remain
            valid and are billed as the provider counts them.
        ContentFiltered: the provider refused to answer, after reasoning alone.
    """

    worker: str
    """Worker that answers: the one that was called, or the one that it fell back to."""
    deltas: AsyncGenerator[Delta]
    model: str
    """Name of the model as the server reports it. Until then, the name that was requested."""
    price: Price | None = FREE
    """Price of the worker that answers, or None if not known."""
    attempts: tuple[Attempt, ...] = ()
    bound: Usage | None = None
    """Most that the call can use, if known."""
    likely_prompt: LikelyPrompt | None = None
    """Function that estimates the prompt of a broken answer whose server has not reported it. None: by its bytes."""
    estimated: Usage | None = None
    """Estimated usage after the stream has broken. It is billed instead of `bound`."""
    meter: Meter | None = None
    """Counts that the worker keeps, from which usage is estimated if the server does not report it. None if it
    keeps none."""
    unseen_s: float = 0.0
    """Seconds until the first token."""
    usage: Usage | None = None
    """Usage so far as the server reports it. None until it does, or if it is not plausible."""
    counted: Usage | None = None
    """Newest plausible usage. A call that is billed at its bound costs at least this."""
    finish: FinishReason | None = None
    cost_usd: Decimal | None = None
    """Cost as the server reports it, or None if it is computed from price and usage."""
    inner_run: str | None = None
    notes: tuple[str, ...] = ()
    billed_at_bound: bool = False
    """True to bill the most that the call can use, because `usage` is not known and will not be."""
    cost_is_bound: bool = False
    """True if `cost_usd` is an upper bound, according to the server."""
    deployment: str = ""
    """See `CallResult.deployment`."""
    span: str = ""
    """See `CallResult.span`."""
    texts: list[str] = field(default_factory=list[str])
    thoughts: list[str] = field(default_factory=list[str])
    tool_calls: list[ToolCall] = field(default_factory=list[ToolCall])
    native: Native | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    stop_sequence: str | None = None
    """See `Delta.stop_sequence`."""
    is_empty: bool = False
    """True if the answer ended normally (`stop`) but is empty. Known after the last delta."""

    async def __aiter__(self) -> AsyncGenerator[Delta]:
        async with aclosing(self.deltas) as deltas:
            async for delta in deltas:
                if len(delta.text) > MOST_CHARS or len(delta.reasoning) > MOST_CHARS:
                    *pieces, delta = _split(delta)
                    for piece in pieces:
                        self._fold(piece)
                        yield piece
                        await asyncio.sleep(0)
                self._fold(delta)
                yield delta
        if self.finish is None:
            raise WorkerUnavailable(
                f"{self.worker} was cut off: its stream ended without a finish reason.", worker=self.worker
            )
        self.close_bill()
        if self.finish is FinishReason.CONTENT_FILTER and not (any(self.texts) or self.tool_calls):
            raise filter_error(self.worker)

    def _fold(self, delta: Delta) -> None:
        """Add `delta` to the state. A later value replaces an earlier one."""
        if delta.text:
            self.texts.append(delta.text)
        if delta.reasoning:
            self.thoughts.append(delta.reasoning)
        self.tool_calls += delta.tool_calls
        self.logprobs += delta.logprobs
        self.native = delta.native or self.native
        if delta.model and delta.model != self.model:
            self.model = whole(delta.model)[:MODEL_CHARS]
        self.finish = delta.finish or self.finish
        self.inner_run = delta.inner_run or self.inner_run
        self.stop_sequence = delta.stop_sequence or self.stop_sequence
        self.notes += delta.notes
        self.count(delta)

    def count(self, delta: Delta) -> None:
        """Update usage and cost from `delta`, if they are plausible. Custom workers do not check what their
        servers report.

        Call this only for deltas that will not be read. Reading a delta calls it automatically.
        """
        if delta.usage is None and delta.cost_usd is None and not delta.billed_at_bound:
            return
        self.billed_at_bound |= delta.billed_at_bound
        if delta.usage is not None and not delta.usage.is_possible:
            self._bill_at_bound(
                "The worker reported an impossible usage, so the call is billed at its upper bound."
            )
        elif delta.usage is not None:
            self.counted = delta.usage
        self.usage = None if self.billed_at_bound else self.counted
        if delta.cost_usd is None:
            return
        if delta.cost_usd.is_finite() and 0 <= delta.cost_usd <= MOST_USD:
            self.cost_usd, self.cost_is_bound = delta.cost_usd, delta.cost_is_bound
        else:
            self.notes += ("The worker reported an impossible cost, which was ignored.",)

    def cut(self, note: str) -> None:
        """End the answer because its reader has stopped. It is billed by what has streamed.

        Args:
            note: reason for the record.
        """
        self.finish = FinishReason.LENGTH
        self._bill_at_bound(f"{note} {self._estimate()}")

    def close_bill(self) -> None:
        """Settle the bill at the end of the stream.

        A call that ended normally, but without a report of its usage, is billed at its bound: the most that
        it can use. A call whose stream broke, or whose reader stopped, is billed by what streamed. A reported
        cost alone does not replace usage.
        """
        is_billed = self.price is not None and self.price != FREE
        if is_billed and self.usage is None and not self.billed_at_bound:
            if self.finish:
                self._bill_at_bound(
                    "The server did not report its usage, so the call is billed at its upper bound."
                )
            else:
                note = "The call ended before the server reported its usage."
                self._bill_at_bound(f"{note} {self._estimate()}")

    def _estimate(self) -> str:
        """Estimate the usage if the call's bound is known. Return a note for the record that explains the bill."""
        if self.bound is None:
            return "The call is billed at its upper bound."
        calls = (part for call in self.tool_calls for part in (call.name, call.arguments))
        n_bytes, thought_bytes = _n_bytes([*self.texts, *calls]), _n_bytes(self.thoughts)
        prompt = self.likely_prompt(Callee(self.worker, self.deployment)) if self.likely_prompt else None
        self.estimated, note = estimate_answer(
            self.bound, n_bytes, thought_bytes, self.unseen_s, self.meter, prompt
        )
        return note

    def charge_part(self, error: WorkerError, text: str) -> None:
        """Set the sizes on `error` from which the cost of a broken answer is estimated.

        Args:
            error: error that ends the answer.
            text: part of the answer that no client has received.
        """
        meter = self.meter
        unseen = unseen_bytes(self.unseen_s) if meter and meter.hides_thoughts else 0
        error.streamed_bytes, error.sent_bytes = (
            _n_bytes([text]) + unseen,
            meter.sent_bytes if meter else None,
        )

    def charge(self, error: WorkerError) -> None:
        """Add the usage, the cost and the earlier attempts to `error`, which replaces an answer that no client
        has received.
        """
        result = self.result
        error.usage, error.cost_usd = result.usage, result.cost_usd
        error.billed_at_bound = error.billed_at_bound or result.usage is None
        error.attempts = (*self.attempts, *error.attempts)

    def _bill_at_bound(self, note: str) -> None:
        self.usage, self.billed_at_bound = None, True
        self.notes += (note,)

    def _bill(self) -> tuple[Decimal | None, bool]:
        """Return the cost, and whether it is an upper bound.

        The cost is at least the plausible cost that the server reported, and at least price times usage.
        """
        reported = dearer(self.cost_usd, cost_of(self.price, self.counted))
        if not self.billed_at_bound:
            return reported, self.cost_is_bound
        if self.price is None or self.bound is None:
            return self.cost_usd, self.cost_is_bound
        took = self.price.of(self.estimated) if self.estimated else self.price.most(self.bound)
        return max(took, reported or Decimal(0)), self.price != FREE

    @property
    def result(self) -> CallResult:
        """Result so far. The cost is price times usage, or the cost that the server reports if that is higher or no
        price is known.
        """
        cost_usd, is_bound = self._bill()
        return CallResult(
            output="".join(self.texts),
            worker=self.worker,
            model=self.model,
            usage=self.usage,
            cost_usd=cost_usd,
            finish=self.finish,
            attempts=self.attempts,
            reasoning="".join(self.thoughts),
            inner_run=self.inner_run,
            notes=self.notes,
            cost_is_bound=is_bound,
            deployment=self.deployment,
            span=self.span,
            tool_calls=tuple(self.tool_calls),
            native=self.native,
            logprobs=tuple(self.logprobs),
            stop_sequence=self.stop_sequence,
            saved_usd=None
            if self.price is None or self.usage is None
            else self.price.savings(self.usage, cost_usd),
        )


def _split(delta: Delta) -> list[Delta]:
    """Split the text and the reasoning of `delta`. The last piece has all its other fields."""
    n_chars = max(len(delta.text), len(delta.reasoning))
    spans = [slice(begin, begin + MOST_CHARS) for begin in range(0, n_chars, MOST_CHARS)]
    pieces = [Delta(text=delta.text[span], reasoning=delta.reasoning[span], pieces=0) for span in spans[:-1]]
    last = spans[-1]
    return [*pieces, replace(delta, text=delta.text[last], reasoning=delta.reasoning[last])]


def _n_bytes(texts: Sequence[str]) -> int:
    return byte_size("".join(texts))


def filter_error(worker: str, early: Sequence[Delta] = (), price: Price | None = FREE) -> ContentFiltered:
    """Return the error for an answer that a filter left without content. Without reported usage, it is billed
    at its bound.
    """
    is_billed = price is not None and price != FREE
    return ContentFiltered(
        f"{worker}'s content filter rejected this prompt. Change the prompt.",
        worker=worker,
        detail=" ".join(note for delta in early for note in delta.notes),
        billed_at_bound=is_billed and not any(delta.usage and not delta.billed_at_bound for delta in early),
    )
