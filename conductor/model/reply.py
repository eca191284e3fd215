"""What a model answers: its pieces, what they add up to, and what that cost.

A bill is never lower than what was told and believed (decisions 0018, 0031, 0065).
"""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from msgspec.structs import replace

from conductor.errors import ContentFiltered, WorkerError, WorkerUnavailable
from conductor.model.characters import HalfJoiner, whole, whole_value
from conductor.model.failure import Attempt
from conductor.model.messages import Native, ToolCall
from conductor.model.operation import TokenLogprob
from conductor.model.usage import FREE, Meter, Price, Usage, cost_of, dearer, estimate_answer, unseen_bytes
from conductor.model.value import Value

MODEL_CHARS = 200
"""A longer model name that a server reports is cut."""
MOST_USD = Decimal(1_000_000)
"""No call costs more: a worker's word for it is not believed."""


class FinishReason(StrEnum):
    """Why a model stopped, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    TOOL_CALLS = "tool_calls"
    """It waits for the results of tools."""


class Delta(Value, frozen=True):
    """The next piece of an answer. The last one carries `finish`, and `usage` where the server reports it.

    `usage` is a running total, so a later one replaces an earlier one.
    """

    text: str = ""
    reasoning: str = ""
    """Thoughts the model shows apart from its answer."""
    finish: FinishReason | None = None
    usage: Usage | None = None
    cost_usd: Decimal | None = None
    """What the server says the call cost so far; it takes precedence over a price list."""
    model: str | None = None
    """The model's name as the server reports it."""
    inner_run: str | None = None
    """The id of the run that answered, where the worker is a team itself."""
    notes: tuple[str, ...] = ()
    """New remarks for the record; see `CallResult.notes`."""
    billed_at_bound: bool = False
    """What the call took is unknown, or what the server says of it cannot be true; `notes` say why."""
    cost_is_bound: bool = False
    """`cost_usd` is the most that the call can have cost, in the server's own words."""
    pieces: int = 1
    """How many pieces of the server's are together in it."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of tools that are complete with it: a piece of a call is never passed on."""
    native: Native | None = None
    """The whole turn as the provider wrote it; with the last piece, where it has to go back unchanged."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of the tokens in `text`, where they were asked for."""
    stop_sequence: str | None = None
    """Which of the call's stop sequences ended the answer, where the server says so."""


class CallResult(Value, frozen=True):
    """What one call gave and took."""

    output: str
    worker: str
    """Who answered: the worker asked, or the one it failed over to."""
    model: str
    usage: Usage | None
    cost_usd: Decimal | None
    """None: unknown."""
    finish: FinishReason | None
    attempts: tuple[Attempt, ...] = ()
    """The calls that failed before this one, oldest first."""
    reasoning: str = ""
    inner_run: str | None = None
    """The id of the run that answered, where the worker is a team itself. Its record is one of its own."""
    notes: tuple[str, ...] = ()
    """What was changed in the call or not believed of the answer, one sentence each: for the record, never
    for the answer."""
    cost_is_bound: bool = False
    """`cost_usd` is the most that the call can have cost; `notes` say why it is not known."""
    deployment: str = ""
    """Which of the places where the worker is reached answered; empty where it has one."""
    span: str = ""
    """The id of the call's span, in hexadecimal; empty where nothing is traced."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of tools, with the provider's ids; the finish reason is `tool_calls` then."""
    native: Native | None = None
    """The turn as the provider wrote it; see `Native`."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of the tokens of `output`, where they were asked for."""
    stop_sequence: str | None = None
    """See `Delta.stop_sequence`."""


@dataclass(slots=True)
class Reply:
    """An answer from its first token on. Iterate once; `result` says at any time what it gave and took so
    far.

    Raises (while iterating):
        WorkerUnavailable: the stream broke, or ended without saying why it ended. What came before was
            received, and is paid for as the provider counts it.
        ContentFiltered: after thoughts alone, its provider refused to answer.
    """

    worker: str
    """Who answers: the worker asked, or the one it fell back to."""
    deltas: AsyncGenerator[Delta]
    model: str
    """The model's name as the server reports it; the one asked for until it does."""
    price: Price | None = FREE
    """What the one who answers takes; None where nobody said."""
    attempts: tuple[Attempt, ...] = ()
    bound: Usage | None = None
    """The most that the call can take, where it is known."""
    estimated: Usage | None = None
    """About what the call took, once its stream has broken: it is billed in place of `bound`."""
    meter: Meter | None = None
    """What its worker counts beside the answer, for an estimate; None: nothing."""
    unseen_s: float = 0.0
    """The time to its first token."""
    usage: Usage | None = None
    """What was consumed so far, as the server says; None until it says so, and where it is not believed."""
    counted: Usage | None = None
    """The newest that was believed: a call billed at its bound costs no less."""
    finish: FinishReason | None = None
    cost_usd: Decimal | None = None
    """What the server says it cost; None: it follows from price and usage."""
    inner_run: str | None = None
    notes: tuple[str, ...] = ()
    billed_at_bound: bool = False
    """Bill the most that the call could take: `usage` is unknown and stays so."""
    cost_is_bound: bool = False
    """`cost_usd` is the most that it can have cost, as the server says."""
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
    """Whether it is known to end well (`stop`) without a word, a thought or a call, once its last piece is read."""

    async def __aiter__(self) -> AsyncGenerator[Delta]:
        async with aclosing(self.deltas) as deltas:
            async for delta in deltas:
                self._fold(delta)
                yield delta
        if self.finish is None:
            raise WorkerUnavailable(
                f"{self.worker} was cut off: its stream ended without a finish reason.", worker=self.worker
            )
        self.close_bill()
        if self.finish is FinishReason.CONTENT_FILTER and not (any(self.texts) or self.tool_calls):
            raise _filter_error(self.worker)

    def _fold(self, delta: Delta) -> None:
        """Take `delta` into account: a later value replaces an earlier one."""
        if delta.text:
            self.texts.append(delta.text)
        if delta.reasoning:
            self.thoughts.append(delta.reasoning)
        self.tool_calls += delta.tool_calls
        self.logprobs += delta.logprobs
        self.native = delta.native or self.native
        self.model = whole(delta.model or self.model)[:MODEL_CHARS]
        self.finish = delta.finish or self.finish
        self.inner_run = delta.inner_run or self.inner_run
        self.stop_sequence = delta.stop_sequence or self.stop_sequence
        self.notes += delta.notes
        self.count(delta)

    def count(self, delta: Delta) -> None:
        """What `delta` says of tokens and money, as far as it can be true: workers of one's own are not checked
        where they speak to their servers. For pieces that nobody reads any more; others are counted as they are read.
        """
        if delta.usage is None and delta.cost_usd is None and not delta.billed_at_bound:
            return
        self.billed_at_bound |= delta.billed_at_bound
        if delta.usage is not None and not delta.usage.is_possible:
            self._bill_at_bound("The worker's usage cannot be true: billed at the call's bound.")
        elif delta.usage is not None:
            self.counted = delta.usage
        self.usage = None if self.billed_at_bound else self.counted
        if delta.cost_usd is None:
            return
        if delta.cost_usd.is_finite() and 0 <= delta.cost_usd <= MOST_USD:
            self.cost_usd, self.cost_is_bound = delta.cost_usd, delta.cost_is_bound
        else:
            self.notes += ("The worker's cost cannot be true, and was not believed.",)

    def cut(self, note: str) -> None:
        """Its reader breaks it off: it is billed by what streamed."""
        self.finish = FinishReason.LENGTH
        self._bill_at_bound(f"{note} {self._estimate()}")

    def close_bill(self) -> None:
        """Nothing more will be said: a call whose server did not tell its usage is billed at its bound, also where
        it ended well. One that broke, or was broken off by its reader, is billed by what streamed. A cost alone proves
        nothing.
        """
        is_billed = self.price is not None and self.price != FREE
        if is_billed and self.usage is None and not self.billed_at_bound:
            if self.finish:
                self._bill_at_bound("The server did not say what the call took: billed at the call's bound.")
            else:
                note = "The server was broken off before it said what the call took."
                self._bill_at_bound(f"{note} {self._estimate()}")

    def _estimate(self) -> str:
        """Estimate what the call took, where that is possible. Return what the record says of it."""
        if self.bound is None:
            return "Billed at the call's bound."
        calls = (part for call in self.tool_calls for part in (call.name, call.arguments))
        n_bytes, thought_bytes = _n_bytes([*self.texts, *calls]), _n_bytes(self.thoughts)
        self.estimated, how = estimate_answer(self.bound, n_bytes, thought_bytes, self.unseen_s, self.meter)
        return how

    def charge_part(self, error: WorkerError, text: str) -> None:
        """Put into `error`, for an estimate, that `text` had streamed of an answer that nobody was shown."""
        meter = self.meter
        unseen = unseen_bytes(self.unseen_s) if meter and meter.hides_thoughts else 0
        error.streamed_bytes, error.sent_bytes = (
            _n_bytes([text]) + unseen,
            meter.sent_bytes if meter else None,
        )

    def charge(self, error: WorkerError) -> None:
        """Put into `error`, which stands for an answer that nobody was shown, what it took and what had failed before it."""
        result = self.result
        error.usage, error.cost_usd = result.usage, result.cost_usd
        error.billed_at_bound = error.billed_at_bound or result.usage is None
        error.attempts = (*self.attempts, *error.attempts)

    def _bill_at_bound(self, note: str) -> None:
        self.usage, self.billed_at_bound = None, True
        self.notes += (note,)

    def _bill(self) -> tuple[Decimal | None, bool]:
        """What it cost, and whether that is the most that it can have cost: never less than what the server
        said and was believed, nor than what its price makes of the usage.
        """
        told = dearer(self.cost_usd, cost_of(self.price, self.counted))
        if not self.billed_at_bound:
            return told, self.cost_is_bound
        if self.price is None or self.bound is None:
            return self.cost_usd, self.cost_is_bound
        took = self.price.of(self.estimated) if self.estimated else self.price.most(self.bound)
        return max(took, told or Decimal(0)), self.price != FREE

    @property
    def result(self) -> CallResult:
        """As far as it got. The cost is price times usage, or what the server itself says where that is more
        or no price is known.
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
        )


@asynccontextmanager
async def open_reply(
    worker: str,
    model: str,
    deltas: AsyncGenerator[Delta],
    price: Price | None = FREE,
    meter: Meter | None = None,
) -> AsyncGenerator[Reply]:
    """Turn a generator of deltas into what `Worker.open` promises: entered at the first token, closed at the
    end.

    Args:
        worker: the name for errors and the record.
        model: the model asked for.
        deltas: not started yet. Its `finally` blocks close what it opened.
        price: what `worker` takes.
        meter: see `Reply`.

    Raises:
        WorkerError: whatever `deltas` raises before its first token; `WorkerUnavailable` where it has none,
            `ContentFiltered` where its provider refused before it.
    """
    mend, began_s = _Mender().mend, time.monotonic()
    async with aclosing(deltas):
        early: list[Delta] = []
        try:
            async for each in deltas:
                delta = mend(each)
                early.append(delta)
                if delta.text or delta.reasoning or delta.tool_calls or delta.finish or delta.inner_run:
                    break
            if early and _is_refusal(early[-1]):
                raise _filter_error(worker, early, price)
        except WorkerError as exc:
            _bill(exc, early, price)
            raise
        if not early:
            raise WorkerUnavailable(f"{worker} closed the stream without a word.", worker=worker)
        unseen_s = time.monotonic() - began_s

        async def all_of_it() -> AsyncGenerator[Delta]:
            for delta in early:
                yield delta
            async for delta in deltas:
                yield mend(delta)

        async with aclosing(all_of_it()) as whole:
            yield Reply(
                worker,
                whole,
                model,
                price,
                meter=meter,
                unseen_s=unseen_s,
                is_empty=_is_empty(early[-1]),
            )


def _n_bytes(texts: Sequence[str]) -> int:
    return len("".join(texts).encode("utf-8", "surrogatepass"))


class _Mender:
    """Makes whole characters of the halves in the pieces of one answer."""

    def __init__(self) -> None:
        self._text, self._reasoning = HalfJoiner(), HalfJoiner()

    def mend(self, delta: Delta) -> Delta:
        is_last = delta.finish is not None
        text = self._text.feed(delta.text, is_last=is_last)
        reasoning = self._reasoning.feed(delta.reasoning, is_last=is_last)
        if text != delta.text or reasoning != delta.reasoning:
            delta = replace(delta, text=text, reasoning=reasoning)
        if delta.tool_calls or delta.native:
            native = delta.native and replace(delta.native, payload=whole_value(delta.native.payload))
            calls = tuple(
                replace(each, id=whole(each.id), name=whole(each.name), arguments=whole(each.arguments))
                for each in delta.tool_calls
            )
            delta = replace(delta, tool_calls=calls, native=native)
        return delta


def _bill(error: WorkerError, early: list[Delta], price: Price | None) -> None:
    """Put what the server said of its cost, before the first token, into `error`."""
    usages = [delta.usage for delta in early if delta.usage and delta.usage.is_possible]
    costs = [delta.cost_usd for delta in early if delta.cost_usd is not None]
    if usages or costs:
        error.usage = usages[-1] if usages else None
        error.cost_usd = dearer(costs[-1] if costs else None, cost_of(price, error.usage))


def _is_empty(first: Delta) -> bool:
    """Whether the answer that begins with `first` ends with it, and says nothing."""
    return first.finish is FinishReason.STOP and not (_says_something(first) or first.inner_run)


def _is_refusal(delta: Delta) -> bool:
    """Whether an answer that begins with `delta` ends there, for what was asked."""
    return delta.finish is FinishReason.CONTENT_FILTER and not _says_something(delta)


def _says_something(delta: Delta) -> bool:
    return bool(delta.text or delta.reasoning or delta.tool_calls)


def _filter_error(worker: str, early: Sequence[Delta] = (), price: Price | None = FREE) -> ContentFiltered:
    """The error of an answer without a word. It ended well, so it is billed like any other: at its bound where
    its server did not tell what it took.
    """
    is_billed = price is not None and price != FREE
    return ContentFiltered(
        f"{worker} would not answer this prompt, for its content: change it.",
        worker=worker,
        detail=" ".join(note for delta in early for note in delta.notes),
        billed_at_bound=is_billed and not any(delta.usage and not delta.billed_at_bound for delta in early),
    )
