"""Windows of spending: a key's and its team's, each by day and by month."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from serving.accounts.money import MAX_PICO

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Period = Literal["day", "month"]


class WindowId(NamedTuple):
    """Whose, and when: `starts` is a day or a month since 1970."""

    subject: str
    period: Period
    starts: int


@dataclass(frozen=True, slots=True)
class Window:
    """What is spent and held, and what may be. Amounts are pico-dollars; no cap is None."""

    cap: int | None
    spent: int
    held: int

    @property
    def room(self) -> int:
        """How much more may be held; below 0 where a bill was higher than its hold, or a cap was lowered."""
        return (MAX_PICO if self.cap is None else self.cap) - self.spent - self.held


def key_subject(key_id: str) -> str:
    """What budgets call a key."""
    return f"key:{key_id}"


def team_subject(team_id: str) -> str:
    """What budgets call a team."""
    return f"team:{team_id}"


def days_and_months(at_us: int) -> tuple[int, int]:
    """The day and the month, UTC, both since 1970, of a time."""
    at = EPOCH + timedelta(microseconds=at_us)
    return (at - EPOCH).days, (at.year - 1970) * 12 + at.month - 1
