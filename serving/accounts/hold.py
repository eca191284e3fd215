"""Holds: the maximum cost of a call, reserved before it is sent, and the check whether it fits the budgets.

A hold counts in windows. A window is one day or one month of a key or a team, in which its budget applies.
This module does not access the database.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Literal, NamedTuple

from serving.accounts.money import MAX_PICO

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Period = Literal["day", "month"]


class WindowId(NamedTuple):
    """Id of a budget window: subject (a key or a team), period, and number of days or months since 1970."""

    subject: str
    period: Period
    starts: int


@dataclass(frozen=True, slots=True)
class Window:
    """State of a budget window, in pico-dollars: limit or None, charged, and reserved by open calls."""

    cap: int | None
    spent: int
    held: int

    @property
    def room(self) -> int:
        """Amount that can be reserved, negative after a call above its hold or a lowered limit."""
        return (MAX_PICO if self.cap is None else self.cap) - self.spent - self.held


def key_subject(key_id: str) -> str:
    """Return the subject by which the budgets and limits of a key are stored."""
    return f"key:{key_id}"


def team_subject(team_id: str) -> str:
    """Return the subject by which the budgets and limits of a team are stored."""
    return f"team:{team_id}"


def days_and_months(at_us: int) -> tuple[int, int]:
    """Return the day and the month of a time, both counted from 1970 (UTC)."""
    at = EPOCH + timedelta(microseconds=at_us)
    return (at - EPOCH).days, (at.year - 1970) * 12 + at.month - 1


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """Request to reserve the maximum cost of a call.

    The cost counts in the day and month in which the request was made, even if the call ends after midnight.

    Args:
        id: unique id of the hold. If a request is repeated with the same id, only one hold is made.
        key_id, team_id: ids of the key and the team that pay.
        day, month: day and month in which the request was made, counted from 1970.
        is_unpriced: whether the price of the call is unknown. Such a request is refused if one of its windows
            has a limit.
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
        """The day and month of the key, and those of its team if it has one."""
        subjects = [key_subject(self.key_id)]
        if self.team_id is not None:
            subjects.append(team_subject(self.team_id))
        return [
            window
            for subject in subjects
            for window in (WindowId(subject, "day", self.day), WindowId(subject, "month", self.month))
        ]


HOLD_COLUMNS = [field.name for field in fields(HoldRequest) if field.name != "is_unpriced"]
"""Columns of the table `hold`, in the order of the fields of `HoldRequest`."""
row_of = attrgetter(*HOLD_COLUMNS)
"""Return the row of the table `hold` for a request."""


@dataclass(frozen=True, slots=True)
class Bill:
    """Cost and usage of a call.

    Args:
        cost: cost in pico-dollars. None if it is unknown. The whole hold then counts as spent.
        input_tokens, output_tokens, cached_tokens: token counts, or None if they are unknown.
        price: price of the worker that answered, as text. If the call was not sent, it is the price for which
            the hold was made.
        worker: worker that answered and bills the call. None if it is the worker that was called.
        account: deployment that answered. None if the worker has only one.
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
    """Refusal of a hold. It contains the window with the smallest remainder, and the state of this window."""

    id: WindowId
    window: Window


def sums(requests: Iterable[HoldRequest]) -> dict[WindowId, int]:
    """Return the total amount that the requests reserve in each window, in the order of locking."""
    totals: dict[WindowId, int] = {}
    for request in requests:
        for window in request.windows:
            totals[window] = totals.get(window, 0) + request.amount
    return dict(sorted(totals.items()))


def decide(requests: Sequence[HoldRequest], windows: Mapping[WindowId, Window]) -> list[Refusal | None]:
    """Decide one after another which requests fit into the rest of all their windows. Return a refusal for
    those that do not.
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
