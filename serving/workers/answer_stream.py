"""Answer of a provider while it streams: the loop that reads its events, and its finish reason.

The finish reasons of all APIs share one table, because proxies and compatible servers use one another's words. They
are checked against the content of the answer.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from conductor.errors import WorkerError
from conductor.model.call import Call
from conductor.model.messages import ToolCall
from conductor.model.reply import Delta, FinishReason
from conductor.model.usage import Usage
from serving.workers.cache_marks import are_for_an_hour
from serving.workers.http_errors import ErrorMapper
from serving.workers.native_turns import Origin
from serving.workers.output_limit import OutputMeter
from serving.workers.picture_urls import check_pictures
from serving.workers.provider_account import ProviderAccount
from serving.workers.usage import UsageCheck
from serving.workers.wire_tools import WireTools

EventT = TypeVar("EventT")

WORDS = {
    FinishReason.STOP: "stop eos eos_token end end_turn stop_sequence stop_token complete completed finished",
    FinishReason.LENGTH: "length max_tokens max_output_tokens max_length model_length max_completion_tokens"
    " model_context_window_exceeded continuation",
    FinishReason.TOOL_CALLS: "tool_calls tool_call tool_use function_call",
    FinishReason.CONTENT_FILTER: "content_filter content_filtered refusal safety sensitive recitation language"
    " blocklist prohibited_content spii image_safety image_prohibited_content image_recitation escalation"
    " pup_limited_disabled model_armor",
}
"""The providers' words for each reason, in lower case."""
REASONS = {word: reason for reason, words in WORDS.items() for word in words.split()}
MAY_BE_EARLY = (FinishReason.STOP, FinishReason.TOOL_CALLS)
"""Reasons that some servers send before the first token, or one in place of the other."""
NO_REASON = ("", "null", "none", "finish_reason_unspecified")
"""Words that servers send instead of null."""


def finish_of(word: object, faults: ErrorMapper, usage: Usage | None) -> FinishReason | None:
    """Map a provider's finish reason, or return None as long as the answer continues.

    An unknown one raises WorkerUnavailable, which is billed by `usage`.
    """
    if word is None:
        return None
    plain = word.strip().lower() if isinstance(word, str) else word
    if plain in NO_REASON:
        return None
    if not isinstance(plain, str) or plain not in REASONS:
        raise faults.odd_end(word, usage)
    return REASONS[plain]


class Provider(NamedTuple):
    account: ProviderAccount
    origin: Origin
    """Origin that signs turns with tool calls."""
    faults: ErrorMapper
    errors: Callable[[], AbstractContextManager[None]]
    """Function that returns a context manager, which raises exceptions of the API as worker errors."""


class AnswerReader(ABC, Generic[EventT]):
    """Reader of one answer. Each API has a subclass that reads its events.

    Attributes:
        last: last delta of the answer, as far as it is known: finish reason, usage, cost and model.
    """

    def __init__(self, call: Call, meter: OutputMeter, provider: Provider) -> None:
        self._call, self._meter, self._provider, self._faults = call, meter, provider, provider.faults
        self._check = UsageCheck(call, provider.account.price, meter)
        self.timer = provider.account.timer(provider.faults, call)
        self.last = Delta()
        self.has_words = self.has_calls = self.is_done = False

    def note_marks(self, request: dict[str, Any]) -> None:
        """Note the lifetime of the cache marks in the request that is sent. It determines the price of cache writes."""
        self._check.writes_hour = are_for_an_hour(request)

    @abstractmethod
    def read(self, event: EventT) -> tuple[list[Delta], bool]:
        """Return the pieces of the answer in an event, and whether it has new content. Update the attributes."""

    @abstractmethod
    def turn(self, tools: WireTools) -> tuple[tuple[ToolCall, ...], object]:
        """Return the tool calls, and the turn in the form in which it must be sent back, or None."""

    @property
    def is_over(self) -> bool:
        """True if the answer is complete. Some servers send `stop` before the first token, so an empty answer
        ends only with its connection.
        """
        finish = self.last.finish
        has_answer = self.has_words or self.has_calls or self.is_done
        return finish is not None and (has_answer or finish not in MAY_BE_EARLY)

    async def deltas(self, host: str, arrivals: AsyncGenerator[Sequence[EventT]]) -> AsyncGenerator[Delta]:
        """Yield the deltas of the answer. `arrivals` sends the call, and yields the events that each read
        completed.
        """
        await check_pictures(self._call, host, self._provider.account.fetches_pictures, self._faults)
        try:
            async with aclosing(arrivals):
                while (events := await self.timer.next(arrivals)) is not None:
                    for event in events:
                        with self._provider.errors():
                            pieces, is_new = self.read(event)
                        ends = self.is_over
                        if ends or is_new:
                            self.timer.hear(is_last=ends, is_new=is_new)
                        for piece in pieces:
                            yield piece
        except WorkerError:
            # an answer that is over is complete; only the end of its stream, such as its usage, was lost
            if not self.is_over:
                raise
        if self.last.finish is not None:
            with self._provider.errors():
                last = self.end()
            yield self._check.delta(last)

    def end(self) -> Delta:
        """Return the last delta with the tool calls, and with a finish reason that fits them.

        Some servers send `stop` after tool calls, or `tool_calls` after text. Calls of a cut answer do not
        count, because the last may be incomplete. Calls without tools are refused.
        """
        finish, tools = self.last.finish, WireTools(self._call.tools)
        if finish not in MAY_BE_EARLY:
            return self.last
        if self.has_calls:
            if not tools.is_offered:
                raise self._faults.refusal(
                    f"{self._faults.worker} called a tool, although the request offers none.",
                    "Check whether its `extra_body` contains tools.",
                )
            calls, turn = self.turn(tools)
            native = None if turn is None else self._provider.origin.sign(turn)
            return replace(self.last, finish=FinishReason.TOOL_CALLS, tool_calls=calls, native=native)
        if finish is FinishReason.TOOL_CALLS and not self.has_words:
            error = self._faults.unavailable(
                f"{self._faults.worker} ended its answer with the finish reason tool_calls but sent no tool call. Try again."
            )
            error.billed_at_bound, error.only_this_call = self.last.usage is None, True
            raise error
        return replace(self.last, finish=FinishReason.STOP)
