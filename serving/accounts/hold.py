"""A hold: the most that a call can cost, reserved before it is opened; and whether it fits.

Knows no database.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from serving.accounts.rates import Window, WindowId, key_subject, team_subject


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """The most that a call can cost, to be reserved. Its day and month stay its own, also past midnight.

    Args:
        id: made up by who asks; the same one again is the same hold.
        run_id, call_no, worker: the call.
        key_id, team_id: who pays.
        day, month: when it was made.
        amount: in pico-dollars.
        owner: the replica that makes it.
        made_us: when.
        is_unpriced: what it can cost is not known, so no window of it may have a cap.
    """

    id: str
    run_id: str
    call_no: int
    key_id: str
    team_id: str | None
    day: int
    month: int
    worker: str
    amount: int
    owner: str
    made_us: int
    is_unpriced: bool = False

    @property
    def windows(self) -> list[WindowId]:
        """Every window that it counts in."""
        subjects = [key_subject(self.key_id)]
        if self.team_id is not None:
            subjects.append(team_subject(self.team_id))
        return [
            window
            for subject in subjects
            for window in (WindowId(subject, "day", self.day), WindowId(subject, "month", self.month))
        ]


@dataclass(frozen=True, slots=True)
class Bill:
    """What a call took.

    Args:
        hold_id: what was held for it.
        cost: in pico-dollars; None: not known, so that all that was held is spent.
        input_tokens, output_tokens, cached_tokens: where they are known.
        price: of who answered, in words; before the call was sent, that by which it was held.
        at_us: when it ended.
        is_bound: `cost` is the most that it can have been, or an estimate.
        worker: who answered, and so bills it; None: the one that was asked.
        account: which of its deployments that was; None: it has one place.
    """

    hold_id: str
    cost: int | None
    at_us: int
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    price: str | None = None
    is_bound: bool = False
    worker: str | None = None
    account: str | None = None

    @property
    def is_exact(self) -> bool:
        """Whether it is known what the call cost."""
        return self.cost is not None and not self.is_bound


@dataclass(frozen=True, slots=True)
class Entry:
    """A call that was made without a hold, while the store was away."""

    request: HoldRequest
    bill: Bill


@dataclass(frozen=True, slots=True)
class Refusal:
    """The window that has the least room, and what it has."""

    id: WindowId
    window: Window


def sums(requests: Iterable[HoldRequest]) -> dict[WindowId, int]:
    """How much is asked of each window, in the order in which windows are locked."""
    found: dict[WindowId, int] = {}
    for request in requests:
        for window in request.windows:
            found[window] = found.get(window, 0) + request.amount
    return dict(sorted(found.items()))


def decide(requests: Sequence[HoldRequest], windows: Mapping[WindowId, Window]) -> list[Refusal | None]:
    """Who is refused, and by which window: each of `requests` in its turn is held where it fits into all of
    its windows beside those before it.

    Args:
        requests: in the order in which they are served.
        windows: all of theirs, as they are now.
    """
    now = dict(windows)
    refusals: list[Refusal | None] = []
    for request in requests:
        capped = [id for id in request.windows if now[id].cap is not None]
        tightest = min(capped or request.windows, key=lambda each: now[each].room)
        if request.amount > now[tightest].room or (request.is_unpriced and capped):
            refusals.append(Refusal(tightest, now[tightest]))
            continue
        for id in request.windows:
            now[id] = replace(now[id], held=now[id].held + request.amount)
        refusals.append(None)
    return refusals
