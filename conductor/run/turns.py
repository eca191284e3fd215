"""What a run with tools has behind it: a step's turns with its tools, and the segments between suspensions.

A run is suspended when nothing of it can go on without its client. What its client was told by then is a
segment; the results that the client sends begin the next one.
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
    """What a tool gave for the call of that number; its id is the provider's."""

    number: int
    result: ToolResult


class Given(JsonValue, frozen=True):
    """What a client sends to a run that waits.

    Args:
        results: of some of the calls, in any order; their ids do not matter.
        said: new messages of the user beside them.
        tools: from now on; None: as before.
        echo: what answers repeat of the request that brought them, as far as it differs from `Task.echo`.
    """

    not_hashed: ClassVar[frozenset[str]] = frozenset({"echo"})

    results: tuple[GivenResult, ...]
    said: tuple[Message, ...] = ()
    tools: Toolset | None = None
    echo: Mapping[str, Any] = {}


class StepTurn(Value, frozen=True):
    """One turn of a step's own conversation: what its worker said, the tools it called, what they gave.

    Args:
        result: of the worker's call.
        calls: of tools.
        results: of the calls, as far as they are there.
        said: by the user, beside them.
        called_s: when it called them, in seconds since the run began; None: not on record.
        answered_s: when the last of their results was there, likewise.
    """

    result: CallResult
    calls: tuple[PendingCall, ...]
    results: tuple[GivenResult, ...] = ()
    said: tuple[Message, ...] = ()
    called_s: float | None = None
    answered_s: float | None = None

    @property
    def is_answered(self) -> bool:
        """Whether every call has its result."""
        return len(self.results) == len(self.calls)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The turn as its worker is shown it: the results in the order of the calls."""
        parts: list[Part] = [Text(self.result.output)] if self.result.output else []
        parts += [pending.call for pending in self.calls]
        asked = Message("assistant", tuple(parts), self.result.native)
        given = {each.number: each.result for each in self.results}
        answered = tuple(given[each.number] for each in self.calls if each.number in given)
        return asked, Message("tool", answered), *self.said

    def after(self, given: Given, at_s: float | None = None) -> "StepTurn":
        """The turn with what of `given` is for it, which came at that time of the run."""
        ids = {each.number: each.call.id for each in self.calls}
        new = tuple(
            GivenResult(each.number, replace(each.result, id=ids[each.number]))
            for each in given.results
            if each.number in ids
        )
        if not new:
            return self
        turn = replace(self, results=self.results + new, said=self.said + given.said)
        return replace(turn, answered_s=at_s) if turn.is_answered else turn


class Segment(DefaultingValue, frozen=True):
    """What a run did until it was suspended, and what its client answered.

    Args:
        calls: numbers of the calls that the client was told of, those of earlier segments that still wait
            included.
        text: that the client was shown with them.
        usage: of the whole run by then.
        cost_usd: likewise; None: unknown.
        given: what ended the suspension; None: it waits still.
        at_s: when it was suspended, in seconds since the run began, which stand still until it goes on.
        suspended: likewise, Unix time; 0: not on record.
        waited_s: how long its client took; 0 while it waits.
    """

    calls: tuple[int, ...]
    text: str = ""
    usage: Usage = Usage()
    cost_usd: Decimal | None = Decimal(0)
    given: Given | None = None
    at_s: float = 0.0
    suspended: float = 0.0
    waited_s: float = 0.0


def conversation(turns: Iterable[StepTurn]) -> tuple[Message, ...]:
    """Turns, each answered, as the worker is shown them after its prompt."""
    return tuple(message for turn in turns for message in turn.messages)
