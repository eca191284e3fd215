"""The port: a model that can be asked one thing.

A vLLM replica, a provider's API and a script look the same from here. So does anything stacked around one (retries,
slots, spans): a layer is a `Worker` that holds a `Worker`. This file knows no model and no wire.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Literal, Protocol

from conductor.errors import WorkerUnavailable
from conductor.model.messages import Message
from conductor.model.refusals import Refusals
from conductor.model.usage import FREE, Price, Usage

MODEL_CHARS = 200
"""No model's name is longer; what a server tells beyond is not kept."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the answer must look like, in the two languages that servers understand.

    `ebnf` is GBNF as xgrammar reads it (vLLM); `json_schema` is what API providers take (None where the text is not JSON).
    Both accept only texts that `formats.py` parses into a plan that can run.
    """

    ebnf: str
    json_schema: dict[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One question to one model. None always means: the worker's own default."""

    messages: tuple[Message, ...]
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    effort: str | None = None
    """OpenAI's `reasoning_effort`, passed on to models that reason."""
    grammar: Grammar | None = None
    read_along: bool = True
    """Somebody reads the answer while it is written; where nobody does, it may come in larger pieces."""
    operation: Literal["chat", "plan"] = "chat"
    """What the call is for: a step of a plan, or the plan itself."""
    plan: int = 0
    """The plan of the run that it belongs to. This and what follows is for spans, errors and records; it is never sent."""
    step: int | None = None
    """The step that asks, from 0; None for the plan itself."""
    access: tuple[int, ...] = ()
    """The steps that it reads."""
    attempt: int = 1
    """Counts up as the call is made again."""
    deadline_at_s: float | None = field(default=None, compare=False)
    """When the caller's time is over, by `time.monotonic`: nothing that takes longer is waited for. None: no deadline."""
    waiting: Callable[[str], None] | None = field(default=None, compare=False)
    """Told why, once it is known that the first token will be long in coming, such as a replica that must be started."""
    refusals: Refusals | None = field(default=None, compare=False)
    """What has been refused in the run so far; never sent."""


class FinishReason(StrEnum):
    """Why a model stopped, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"


@dataclass(frozen=True, slots=True)
class Delta:
    """The next piece of an answer. The last one carries `finish`, and `usage` where the server tells it.

    `usage` is a running total, so a later one replaces an earlier one.
    """

    text: str = ""
    reasoning: str = ""
    """Thoughts the model shows apart from its answer."""
    finish: FinishReason | None = None
    usage: Usage | None = None
    cost_usd: Decimal | None = None
    """What the server says the call cost so far; counts more than a price list."""
    model: str | None = None
    """The model's name as the server reports it."""
    inner: object | None = None
    """The record of the run that answered, where the worker is a team itself."""
    notes: tuple[str, ...] = ()
    """New remarks for the record; see `Reply.notes`."""
    billed_at_bound: bool = False
    """What the call took cannot be known, or what the server says of it cannot be true; `notes` say why."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call that failed and was followed by another."""

    worker: str
    error: str
    """The error's type, such as `WorkerBusy`."""
    message: str
    waited_s: float
    """How long was waited after it."""
    detail: str = ""
    """What only the operator needs; see `PodiumError.detail`."""


@dataclass(slots=True)
class Reply:
    """An answer from its first token on. Iterate once; what it learnt on the way is in its fields afterwards.

    Raises (while iterating):
        WorkerUnavailable: the stream broke, or ended without saying why it ended. What came before was received, and is
            paid for as the provider counts it.
    """

    worker: str
    """Who answers: the worker asked, or the one it fell back to."""
    deltas: AsyncIterator[Delta]
    model: str
    """The model's name as the server reports it; the one asked for until it does."""
    price: Price | None = FREE
    """What the one who answers takes; None where nobody said."""
    attempts: tuple[Attempt, ...] = ()
    usage: Usage | None = None
    """What was consumed so far, as the server says; None until it says so."""
    finish: FinishReason | None = None
    cost_usd: Decimal | None = None
    """What the server says it cost; None: reckon it from price and usage."""
    inner: object | None = None
    """The record of the run that answered, where the worker is a team itself."""
    notes: tuple[str, ...] = ()
    """What was changed in the call or not believed of the answer, one sentence each: for the record, never for the answer."""
    billed_at_bound: bool = False
    """Bill the most that the call could take: `usage` is unknown and stays so."""

    async def __aiter__(self) -> AsyncGenerator[Delta]:
        async for delta in self.deltas:
            self.model = (delta.model or self.model)[:MODEL_CHARS]
            self.billed_at_bound |= delta.billed_at_bound
            self.usage = None if self.billed_at_bound else delta.usage or self.usage
            self.finish = delta.finish or self.finish
            self.inner = delta.inner or self.inner
            self.notes += delta.notes
            self.cost_usd = self.cost_usd if delta.cost_usd is None else delta.cost_usd
            yield delta
        if self.finish is None:
            raise WorkerUnavailable(
                f"{self.worker} was cut off: its stream ended without a finish reason.", worker=self.worker
            )


class Worker(Protocol):
    """A model that can be asked one thing."""

    @property
    def name(self) -> str:
        """Its name in the pool."""
        ...

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """Send `call`; entered once the first token is here.

        So the time to the first token is the time entering takes, a retry is allowed exactly until then, and leaving the
        block closes the socket or aborts the local request, whatever was read by then.

        Raises:
            WorkerError: nothing was shown. A provider that had begun to work may still count what it read.
        """
        ...


@asynccontextmanager
async def open_reply(
    worker: str, model: str, deltas: AsyncGenerator[Delta], price: Price | None = FREE
) -> AsyncGenerator[Reply]:
    """Turn a generator of deltas into what `Worker.open` promises: entered at the first token, closed at the end.

    Args:
        worker: the name for errors and the record.
        model: the model asked for.
        deltas: not started yet. Its `finally` blocks close what it opened.
        price: what `worker` takes.

    Raises:
        WorkerError: whatever `deltas` raises before its first token, or `WorkerUnavailable` where it has none.
    """
    async with aclosing(deltas):
        held: list[Delta] = []
        async for delta in deltas:
            held.append(delta)
            if delta.text or delta.reasoning or delta.finish or delta.inner:
                break
        if not held:
            raise WorkerUnavailable(f"{worker} closed the stream without a word.", worker=worker)

        async def all_of_it() -> AsyncGenerator[Delta]:
            for delta in held:
                yield delta
            async for delta in deltas:
                yield delta

        async with aclosing(all_of_it()) as whole:
            yield Reply(worker, whole, model, price)
