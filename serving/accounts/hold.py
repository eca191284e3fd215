"""Holds: the most that a call can cost, reserved before it is sent, and the check whether it fits the
budgets.

This module does not access the database.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter

from serving.accounts.rates import Window, WindowId, key_subject, team_subject


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """Request to reserve the most that a call can cost. It counts in the day and month in which it was made,
    even after midnight.

    Args:
        id: id chosen by the caller. A second request with the same id is the same hold.
        run_id, call_no, worker: the call.
        key_id, team_id: the account that pays.
        day, month: day and month in which it was made.
        amount: amount in pico-dollars.
        owner: replica that makes the hold.
        made_us: time when it was made.
        is_unpriced: whether the cost is not known. It is then refused if any of its windows has a cap.
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
        """All windows in which the hold counts."""
        subjects = [key_subject(self.key_id)]
        if self.team_id is not None:
            subjects.append(team_subject(self.team_id))
        return [
            window
            for subject in subjects
            for window in (WindowId(subject, "day", self.day), WindowId(subject, "month", self.month))
        ]


HOLD_COLUMNS = [field.name for field in fields(HoldRequest) if field.name != "is_unpriced"]
"""Columns of the table `hold`, in the order of the fields."""
row_of = attrgetter(*HOLD_COLUMNS)
"""Returns the values of `HOLD_COLUMNS` of a request."""


@dataclass(frozen=True, slots=True)
class Bill:
    """Cost and usage of a call.

    Args:
        hold_id: id of the call's hold.
        cost: cost in pico-dollars. None: not known, so the whole hold is spent.
        input_tokens, output_tokens, cached_tokens: token counts, if known.
        price: price of the worker that answered, as text. For a call that was not sent, the price of the
            hold.
        at_us: time when the call ended.
        is_bound: whether `cost` is an upper bound or an estimate.
        worker: worker that answered and bills the call. None: the one that was called.
        account: deployment that answered. None: the worker has only one.
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
        """True if the cost of the call is known exactly."""
        return self.cost is not None and not self.is_bound


@dataclass(frozen=True, slots=True)
class Entry:
    """Call that was made without a hold while the store was unreachable."""

    request: HoldRequest
    bill: Bill


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal of a hold, with the window that has the least room and its state."""

    id: WindowId
    window: Window


def sums(requests: Iterable[HoldRequest]) -> dict[WindowId, int]:
    """Return the total amount for each window, in the order in which windows are locked."""
    totals: dict[WindowId, int] = {}
    for request in requests:
        for window in request.windows:
            totals[window] = totals.get(window, 0) + request.amount
    return dict(sorted(totals.items()))


def decide(requests: Sequence[HoldRequest], windows: Mapping[WindowId, Window]) -> list[Refusal | None]:
    """Return a refusal or None for each request.

    Each request in turn is held if it fits into all its windows, together with those held before it.

    Args:
        requests: requests in the order in which they are served.
        windows: current state of all their windows.
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
