"""History of a run whose steps call the client's tools.

A turn of a step consists of its worker's output, the tool calls in it, and their results. A run is suspended while it
cannot continue without its client's tool results. A segment is the part of a run up to a suspension. The client's tool
results start the next segment.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, ClassVar

from msgspec.structs import replace

from conductor.model.messages import Message, Part, PendingCall, Text, ToolResult, Toolset
from conductor.model.reply import CallResult
from conductor.model.usage import Usage
from conductor.model.value import DefaultingValue, JsonValue, Value


class GivenResult(Value, frozen=True):
    """Result of the tool call with this number in the run. The id in `result` is the provider's."""

    number: int
    result: ToolResult


class ClientReply(JsonValue, frozen=True, tag="Given"):
    """Input from the client to a run that waits. Stored records call it `Given`.

    Args:
        said: new user messages that the client sent with the results.
        tools: tools from now on, or None if they do not change.
        echo: request fields that responses repeat, if they differ from `Task.echo`.
    """

    not_hashed: ClassVar[frozenset[str]] = frozenset({"echo"})

    results: tuple[GivenResult, ...]
    said: tuple[Message, ...] = ()
    tools: Toolset | None = None
    echo: Mapping[str, Any] = {}


class StepTurn(Value, frozen=True):
    """One turn of a step's conversation: its worker's output, the tool calls and their results.

    Args:
        result: result of the worker's call.
        calls: tool calls that the worker made.
        results: tool results that have arrived.
        said: user messages that the client sent with the results.
        called_s: time of the tool calls in seconds since the run began, or None if it was not recorded.
        answered_s: time of the last result in seconds since the run began. None before it arrives, or if it was not
            recorded.
    """

    result: CallResult
    calls: tuple[PendingCall, ...]
    results: tuple[GivenResult, ...] = ()
    said: tuple[Message, ...] = ()
    called_s: float | None = None
    answered_s: float | None = None

    @property
    def is_answered(self) -> bool:
        """True if every call has its result."""
        return len(self.results) == len(self.calls)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The turn as its worker receives it, with the results in the order of the calls."""
        parts: list[Part] = [Text(self.result.output)] if self.result.output else []
        parts += [pending.call for pending in self.calls]
        call_message = Message("assistant", tuple(parts), self.result.native)
        results = {each.number: each.result for each in self.results}
        answered = tuple(results[each.number] for each in self.calls if each.number in results)
        return call_message, Message("tool", answered), *self.said

    def after(self, client_reply: ClientReply, at_s: float | None = None) -> "StepTurn":
        """Return the turn with its results in `client_reply`, which arrived `at_s` seconds after the start."""
        ids = {each.number: each.call.id for each in self.calls}
        new = tuple(
            GivenResult(each.number, replace(each.result, id=ids[each.number]))
            for each in client_reply.results
            if each.number in ids
        )
        if not new:
            return self
        turn = replace(self, results=self.results + new, said=self.said + client_reply.said)
        return replace(turn, answered_s=at_s) if turn.is_answered else turn


class Segment(DefaultingValue, frozen=True):
    """Part of a run up to a suspension, and the client's reply.

    Args:
        calls: numbers of the tool calls that the client received, including open calls of earlier segments.
        cost_usd: cost of the whole run so far, or None if it is unknown.
        at_s: time of the suspension, in seconds since the run began. This clock stops during a suspension.
        suspended: Unix time of the suspension, or 0 if it was not recorded.
        waited_s: duration of the suspension in seconds. 0 while the run waits.
    """

    calls: tuple[int, ...]
    text: str = ""
    usage: Usage = Usage()
    cost_usd: Decimal | None = Decimal(0)
    given: ClientReply | None = None
    at_s: float = 0.0
    suspended: float = 0.0
    waited_s: float = 0.0


def conversation(turns: Iterable[StepTurn]) -> tuple[Message, ...]:
    """Return the messages of `turns`. They follow the worker's prompt."""
    return tuple(message for turn in turns for message in turn.messages)
