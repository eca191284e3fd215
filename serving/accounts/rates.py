"""Requests and tokens per minute, of keys and teams."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol, cast

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.storage import storage_from_string

from conductor.errors import BadTask, RateLimited
from conductor.run.record import Account, RunRecords
from serving.accounts.account_policy import Policies
from serving.accounts.money import MAX_PICO
from serving.redaction.secrets import learn_secret, redact_secrets

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


logger = logging.getLogger("podium")

MINUTE_S = 60
NO_LIMIT = 2**62
"""For corrections, which are never refused."""
REDIS_S = 1.0
"""A Redis that takes longer does not answer, and nobody waits for it."""
LOG_EVERY_S = 10.0
Kind = Literal["requests", "tokens"]


class Windows(Protocol):
    """What is used of a storage of `limits`."""

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Count `amount`, unless that were more than `limit` in the window."""
        ...

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """The count of the window before and how long it still matters, and of this one likewise."""
        ...


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit of somebody's.

    Args:
        whose: `key` or `team`.
        subject: see `serving.accounts.rates`.
        kind: of what.
        limit: how many in a minute.
    """

    whose: str
    subject: str
    kind: Kind
    limit: int

    @property
    def key(self) -> str:
        """What it is counted under."""
        return RateLimitItemPerMinute(self.limit, namespace="podium").key_for(self.subject, self.kind)


@dataclass(frozen=True, slots=True)
class Level:
    """How far a limit is used up, and when it will be as at the beginning."""

    rate: Rate
    remaining: int
    reset_s: float


@dataclass(slots=True, eq=False)
class RateReservation:
    """What a request has taken of the rates of its key and its team.

    Args:
        levels: of every limit that it counts in, afterwards.
        tokens: taken of each limit, until they are settled.
        at_s: when, by the machine's clock.
        refusal: why nothing was taken; None: the request is admitted.
        is_owned: a run settles it at its end.
    """

    levels: tuple[Level, ...] = ()
    tokens: dict[Rate, int] = field(default_factory=dict[Rate, int])
    at_s: float = 0.0
    refusal: RateLimited | None = None
    is_owned: bool = False

    @property
    def headers(self) -> dict[str, str]:
        """In OpenAI's words, of whichever limit has least left of each kind."""
        least: dict[Kind, Level] = {}
        for level in self.levels:
            kind = level.rate.kind
            if kind not in least or level.remaining < least[kind].remaining:
                least[kind] = level
        fields: dict[str, str] = {}
        for kind, level in least.items():
            fields[f"x-ratelimit-limit-{kind}"] = str(level.rate.limit)
            fields[f"x-ratelimit-remaining-{kind}"] = str(level.remaining)
            fields[f"x-ratelimit-reset-{kind}"] = _span(level.reset_s)
        return fields


NO_RATES = RateReservation()
"""Of a request that nobody limits."""


def rates_of(account: Account, policies: Policies) -> list[Rate]:
    """The limits of whoever sends a request."""
    found: list[Rate] = []
    for whose, subject, policy in (
        ("key", key_subject(account.key_id), policies.key),
        ("team", team_subject(account.team_id), policies.team),
    ):
        limits: tuple[tuple[Kind, int | None], ...] = (
            ("requests", policy.requests_per_minute),
            ("tokens", policy.tokens_per_minute),
        )
        found += [Rate(whose, subject, kind, limit) for kind, limit in limits if limit is not None]
    return found


def check_possible(asked: Sequence[int], read: int, account: Account, policies: Policies, param: str) -> None:
    """See that a request fits into the limits of a minute of which nothing is used. Else waiting is no use.

    Args:
        asked: about how many tokens each of its answers takes.
        read: about how many tokens its text has.
        account: who asks.
        policies: with the limits.
        param: the field that says how many answers are wanted.

    Raises:
        BadTask: it does not fit. Nothing was counted.
    """
    for rate in rates_of(account, policies):
        setting = f"{rate.kind}_per_minute"
        if rate.kind == "requests" and len(asked) > rate.limit:
            raise BadTask(
                f"{param}: {len(asked)} answers are {len(asked)} requests, and the {rate.whose} may send {rate.limit:,} in "
                f"a minute ({setting}). Ask for at most {rate.limit:,}.",
                param=param,
            )
        if rate.kind == "tokens" and read > rate.limit:
            raise BadTask(
                f"The request has about {read:,} tokens of text, and the {rate.whose} may use {rate.limit:,} tokens in a "
                f"minute ({setting}). Send less text.",
                param=setting,
            )
        if rate.kind == "tokens" and len(asked) > 1 and sum(_amounts(asked, rate)) > rate.limit:
            raise BadTask(
                f"{param}: {len(asked)} answers may take {sum(asked):,} tokens, and the {rate.whose} may use {rate.limit:,} "
                f"in a minute ({setting}). Ask for fewer or shorter answers.",
                param=param,
            )


def _amounts(asked: Iterable[int], rate: Rate) -> list[int]:
    """How much of a limit each answer is counted as at first."""
    return [1 if rate.kind == "requests" else max(1, min(tokens, rate.limit)) for tokens in asked]


class Rates:
    """Counts requests and tokens; see `aclose`.

    Args:
        url: of a Redis; None: the memory of this process.
        now_s: the time of day.
    """

    def __init__(self, url: str | None = None, now_s: Callable[[], float] = time.time) -> None:
        self._url, self._now_s = url, now_s
        self._windows: Windows | None = None if url else cast(Windows, MemoryStorage())
        self._logged_s = -math.inf
        if url:
            learn_secret(url.rpartition("@")[0].rpartition(":")[2])

    async def reserve(self, account: Account, policies: Policies, tokens: int) -> RateReservation:
        """Count a request, or return why it is rejected.

        Args:
            account: of the client.
            policies: with the limits.
            tokens: estimate for the request.
        """
        rates = rates_of(account, policies)
        if not rates:
            return NO_RATES
        taken: dict[Rate, int] = {}
        for rate in rates:
            (amount,) = _amounts([tokens], rate)
            if not await self._count(rate, amount, rate.limit):
                await self._give_back(taken)
                return RateReservation(await self._levels(rates), refusal=await self._refusal(rate, amount))
            taken[rate] = amount
        tokens_taken = {rate: amount for rate, amount in taken.items() if rate.kind == "tokens"}
        return RateReservation(await self._levels(rates), tokens_taken, self._now_s())

    async def settle(self, reservation: RateReservation, records: RunRecords | None) -> None:
        """Correct the tokens that were taken for a run to those that its calls took; give all back if there was no run.
        A second call does nothing.
        """
        taken_of = dict(reservation.tokens)
        reservation.tokens.clear()
        used = records.record.segment_usage.total_tokens if records else 0
        is_late = self._now_s() - reservation.at_s > MINUTE_S
        for rate, taken in taken_of.items():
            if used > taken:
                await self._count(rate, used - taken, NO_LIMIT)
            elif not is_late:  # what was taken before does not count any more
                await self._give_back({rate: taken - used})

    async def aclose(self) -> None:
        """Close its connections."""
        if self._url and self._windows is not None:
            connection: Any = cast(Any, self._windows).bridge.get_connection()
            await connection.aclose()

    async def _give_back(self, taken: dict[Rate, int]) -> None:
        for rate, amount in taken.items():
            _, _, count, _ = await self._window(rate)
            if count > 0:
                await self._count(rate, -min(amount, count), NO_LIMIT)

    async def _count(self, rate: Rate, amount: int, limit: int) -> bool:
        return await self._ask(
            lambda windows: windows.acquire_sliding_window_entry(rate.key, limit, MINUTE_S, amount), True
        )

    async def _levels(self, rates: Iterable[Rate]) -> tuple[Level, ...]:
        return tuple([await self._level(rate) for rate in rates])

    async def _level(self, rate: Rate) -> Level:
        window = await self._window(rate)
        before, before_s, count, count_s = window
        left = rate.limit - math.floor(before * before_s / MINUTE_S + count)
        return Level(rate, max(0, left), count_s if count else before_s if before else 0.0)

    async def _window(self, rate: Rate) -> tuple[int, float, int, float]:
        return await self._ask(
            lambda windows: windows.get_sliding_window(rate.key, MINUTE_S), (0, 0.0, 0, 0.0)
        )

    async def _refusal(self, rate: Rate, amount: int) -> RateLimited:
        wait_s = wait_until(await self._window(rate), rate.limit, amount)
        message = (
            f"The {rate.whose} may use {rate.limit:,} {rate.kind} in a minute, and that is reached. Ask again in "
            f"{math.ceil(wait_s)} s. An administrator may change {rate.kind}_per_minute: `podium {rate.whose}s policy`."
        )
        return RateLimited(message, retry_after_s=wait_s, limit=f"{rate.limit} {rate.kind} per minute")

    async def _ask(self, question: Callable[[Windows], Awaitable[Any]], otherwise: Any) -> Any:
        """What the windows say; `otherwise` where they do not answer: rates are no budget, and nobody is kept
        out because of them.
        """
        try:
            if self._windows is None:
                options: dict[str, Any] = {"implementation": "redispy", "socket_timeout": REDIS_S, "socket_connect_timeout": REDIS_S}  # fmt: skip
                self._windows = cast(Windows, storage_from_string(f"async+{self._url}", **options))
            async with asyncio.timeout(REDIS_S):
                return await question(self._windows)
        except _outages() as exc:
            if self._now_s() - self._logged_s > LOG_EVERY_S:
                self._logged_s = self._now_s()
                logger.error("Rates are not counted: Redis does not answer: %s", redact_secrets(str(exc)))
            return otherwise


def _outages() -> tuple[type[Exception], ...]:
    from redis.exceptions import RedisError

    return (RedisError, OSError, TimeoutError)


def wait_until(window: tuple[int, float, int, float], limit: int, amount: int) -> float:
    """How long until `amount` fits into a window, where nothing else is taken meanwhile.

    Args:
        window: see `Windows.get_sliding_window`.
        limit: of the window.
        amount: at most `limit`.
    """
    before, before_s, count, count_s = window
    room = limit - amount + 1  # counts are rounded down
    next_s = max(0.0, count_s - MINUTE_S)
    if count < room:
        return min(next_s, max(0.0, before_s - (room - count) * MINUTE_S / before)) if before else 0.0
    return next_s + MINUTE_S * (1 - room / count)


def _span(span_s: float) -> str:
    """A time as OpenAI writes it: `250ms`, `12s`, `1m30s`."""
    if span_s < 1:
        return f"{math.ceil(span_s * 1000)}ms"
    minutes, seconds = divmod(math.ceil(span_s), 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
