"""Rate limits: requests and tokens per minute, for keys and teams."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.storage import storage_from_string

from conductor.errors import BadTask, RateLimited
from conductor.run.record import Account, RunRecords
from serving.accounts.account_policy import Policies
from serving.accounts.hold import key_subject, team_subject
from serving.redaction.secrets import learn_secret, redact_secrets

logger = logging.getLogger("podium")

MINUTE_S = 60
NO_LIMIT = 2**62
"""Limit for corrections after a request, so that they are never rejected."""
REDIS_S = 1.0
"""Timeout of Redis in seconds. After it, Redis counts as unreachable."""
LOG_EVERY_S = 10.0
Kind = Literal["requests", "tokens"]


class Windows(Protocol):
    """Part of the interface of the `limits` package's storages that is used here."""

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Count `amount` in a sliding window and return True. If it would exceed `limit`, return False."""
        ...

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Return the counts of the previous and the current window, each with the seconds until it expires."""
        ...


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Rate limit of a key or a team.

    Args:
        owner: owner of the limit, `key` or `team`.
        subject: id of the owner. See `key_subject` and `team_subject`.
    """

    owner: str
    subject: str
    kind: Kind
    limit: int

    @property
    def key(self) -> str:
        return RateLimitItemPerMinute(self.limit, namespace="podium").key_for(self.subject, self.kind)


@dataclass(frozen=True, slots=True)
class Level:
    """State of a rate limit: what remains of it, and the seconds until all of it is available again."""

    rate: RateLimit
    remaining: int
    reset_s: float


@dataclass(slots=True, eq=False)
class RateReservation:
    """Result of counting a request in the rate limits of its key and team.

    Args:
        tokens: estimated tokens that were counted in each token limit. Empty after they were settled.
        refusal: the error if a limit was reached and nothing was counted. None if the request is admitted.
        is_owned: whether a run has taken over the reservation and settles it at its end.
    """

    levels: tuple[Level, ...] = ()
    tokens: dict[RateLimit, int] = field(default_factory=dict[RateLimit, int])
    at_s: float = 0.0
    refusal: RateLimited | None = None
    is_owned: bool = False

    @property
    def headers(self) -> dict[str, str]:
        """OpenAI's rate limit headers, for the tightest limit of each kind."""
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
"""Reservation of a request without limits."""


def rates_of(account: Account, policies: Policies) -> list[RateLimit]:
    """Return the rate limits of an account, from the policies of its key and its team."""
    rates: list[RateLimit] = []
    for owner, subject, policy in (
        ("key", key_subject(account.key_id), policies.key),
        ("team", team_subject(account.team_id), policies.team),
    ):
        limits: tuple[tuple[Kind, int | None], ...] = (
            ("requests", policy.requests_per_minute),
            ("tokens", policy.tokens_per_minute),
        )
        rates += [RateLimit(owner, subject, kind, limit) for kind, limit in limits if limit is not None]
    return rates


def check_possible(
    answer_tokens: Sequence[int], text_tokens: int, account: Account, policies: Policies, param: str
) -> None:
    """Check that a request would fit if nothing else was counted, because it would never be admitted. The
    BadTask names `param`.
    """
    for rate in rates_of(account, policies):
        setting = f"{rate.kind}_per_minute"
        if rate.kind == "requests" and len(answer_tokens) > rate.limit:
            raise BadTask(
                f"{param}: {len(answer_tokens)} answers count as {len(answer_tokens)} requests, but the {rate.owner} may send {rate.limit:,} per "
                f"minute ({setting}). Request at most {rate.limit:,} answers.",
                param=param,
            )
        if rate.kind == "tokens" and text_tokens > rate.limit:
            raise BadTask(
                f"The request has about {text_tokens:,} tokens of text, but the {rate.owner} may use {rate.limit:,} tokens per "
                f"minute ({setting}). Send less text.",
                param=setting,
            )
        if (
            rate.kind == "tokens"
            and len(answer_tokens) > 1
            and sum(_amounts(answer_tokens, rate)) > rate.limit
        ):
            raise BadTask(
                f"{param}: {len(answer_tokens)} answers may take {sum(answer_tokens):,} tokens, but the {rate.owner} may use {rate.limit:,} "
                f"per minute ({setting}). Request fewer or shorter answers.",
                param=param,
            )


def _amounts(tokens_of_answers: Iterable[int], rate: RateLimit) -> list[int]:
    return [1 if rate.kind == "requests" else max(1, min(tokens, rate.limit)) for tokens in tokens_of_answers]


class RateCounter:
    """Counter for the rate limits, in Redis or in this process. Close it with `aclose`."""

    def __init__(self, url: str | None = None, now_s: Callable[[], float] = time.time) -> None:
        self._url, self._now_s = url, now_s
        self._windows: Windows | None = None if url else cast(Windows, MemoryStorage())
        self._logged_s = -math.inf
        if url:
            learn_secret(url.rpartition("@")[0].rpartition(":")[2])

    async def reserve(self, account: Account, policies: Policies, tokens: int) -> RateReservation:
        """Count a request in the limits of its key and team. At a limit, nothing is counted, and `refusal`
        has the error.
        """
        rates = rates_of(account, policies)
        counted: dict[RateLimit, int] = {}
        for rate in rates:
            (amount,) = _amounts([tokens], rate)
            if not await self._count(rate, amount, rate.limit):
                await self._give_back(counted)
                return RateReservation(await self._levels(rates), refusal=await self._refusal(rate, amount))
            counted[rate] = amount
        tokens_counted = {rate: amount for rate, amount in counted.items() if rate.kind == "tokens"}
        return RateReservation(await self._levels(rates), tokens_counted, self._now_s())

    async def give_back(self, account: Account, policies: Policies) -> None:
        """Give back a request of one token that `reserve` has counted."""
        await self._give_back(dict.fromkeys(rates_of(account, policies), 1))

    async def settle(self, reservation: RateReservation, records: RunRecords | None) -> None:
        """Replace the estimated tokens of a request by those of its run, or by 0 without a run. Works once."""
        counted = dict(reservation.tokens)
        reservation.tokens.clear()
        used = records.record.segment_usage.total_tokens if records else 0
        is_late = self._now_s() - reservation.at_s > MINUTE_S
        for rate, n_counted in counted.items():
            if used > n_counted:
                await self._count(rate, used - n_counted, NO_LIMIT)
            elif not is_late:  # tokens that were counted longer ago no longer matter
                await self._give_back({rate: n_counted - used})

    async def aclose(self) -> None:
        if self._url and self._windows is not None:
            connection: Any = cast(Any, self._windows).bridge.get_connection()
            await connection.aclose()

    async def _give_back(self, counted: dict[RateLimit, int]) -> None:
        for rate, amount in counted.items():
            _, _, count, _ = await self._window(rate)
            if count > 0:
                await self._count(rate, -min(amount, count), NO_LIMIT)

    async def _count(self, rate: RateLimit, amount: int, limit: int) -> bool:
        return await self._ask(
            lambda windows: windows.acquire_sliding_window_entry(rate.key, limit, MINUTE_S, amount), True
        )

    async def _levels(self, rates: Iterable[RateLimit]) -> tuple[Level, ...]:
        return tuple([await self._level(rate) for rate in rates])

    async def _level(self, rate: RateLimit) -> Level:
        window = await self._window(rate)
        before, before_s, count, count_s = window
        remaining = rate.limit - math.floor(before * before_s / MINUTE_S + count)
        return Level(rate, max(0, remaining), count_s if count else before_s if before else 0.0)

    async def _window(self, rate: RateLimit) -> tuple[int, float, int, float]:
        return await self._ask(
            lambda windows: windows.get_sliding_window(rate.key, MINUTE_S), (0, 0.0, 0, 0.0)
        )

    async def _refusal(self, rate: RateLimit, amount: int) -> RateLimited:
        wait_s = wait_until(await self._window(rate), rate.limit, amount)
        message = (
            f"The {rate.owner} has reached its limit of {rate.limit:,} {rate.kind} per minute. Retry in "
            f"{math.ceil(wait_s)} s. An administrator can change {rate.kind}_per_minute with `podium {rate.owner}s policy`."
        )
        return RateLimited(message, retry_after_s=wait_s, limit=f"{rate.limit} {rate.kind} per minute")

    async def _ask(self, question: Callable[[Windows], Awaitable[Any]], otherwise: Any) -> Any:
        """Return the storage's answer, or `otherwise` without Redis, because rate limits protect no money."""
        try:
            if self._windows is None:
                options: dict[str, Any] = {"implementation": "redispy", "socket_timeout": REDIS_S, "socket_connect_timeout": REDIS_S}  # fmt: skip
                self._windows = cast(Windows, storage_from_string(f"async+{self._url}", **options))
            async with asyncio.timeout(REDIS_S):
                return await question(self._windows)
        except _outages() as exc:
            if self._now_s() - self._logged_s > LOG_EVERY_S:
                self._logged_s = self._now_s()
                logger.error(
                    "Rate limits are not enforced, because Redis does not respond: %s",
                    redact_secrets(str(exc)),
                )
            return otherwise


def _outages() -> tuple[type[Exception], ...]:
    from redis.exceptions import RedisError

    return (RedisError, OSError, TimeoutError)


def wait_until(window: tuple[int, float, int, float], limit: int, amount: int) -> float:
    """Return the seconds until `amount`, at most `limit`, fits into a sliding window if nothing else is
    counted.
    """
    before, before_s, count, count_s = window
    room = limit - amount + 1  # counts are rounded down
    next_s = max(0.0, count_s - MINUTE_S)
    if count < room:
        return min(next_s, max(0.0, before_s - (room - count) * MINUTE_S / before)) if before else 0.0
    return next_s + MINUTE_S * (1 - room / count)


def _span(span_s: float) -> str:
    """Return a duration in OpenAI's format: `250ms`, `12s`, `1m30s`."""
    if span_s < 1:
        return f"{math.ceil(span_s * 1000)}ms"
    minutes, seconds = divmod(math.ceil(span_s), 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
