"""Authentication: find the caller for a request's key in the database, and cache the result for a few
seconds.

Because of the cache, a revoked key may still be accepted for `FRESH_S` seconds. While the database is
unreachable, it may be accepted for `KEPT_S` seconds, or `KEPT_AWAY_S` if `store.when_away` is `serve`.
Requests whose key is not cached are rejected while the database is unreachable.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from conductor.errors import StoreUnavailable, Unauthenticated
from serving.accounts.caller import Caller
from serving.accounts.key_info import US, KeyInfo, iso
from serving.accounts.keys import ApiKey, KeyFormError, hash_key
from serving.database.address import StoreError

logger = logging.getLogger("podium")

FRESH_S, RENEWED_S = 4.0, 2.0
"""Seconds for which a cached result is used. After `RENEWED_S` seconds it is refreshed in the background.

Without the early refresh, all requests that arrive during a look-up would wait for it and continue at the
same moment. A busy event loop would never spread them out again.
"""
KEPT_S = 9.0
"""Seconds for which a cached result is used while the database is unreachable. This is less than the 10 s
within which a revocation must take effect."""
KEPT_AWAY_S = 3600.0
"""Like `KEPT_S`, but with `store.when_away: serve`."""
LOOKUP_S = 3.0
"""Maximum seconds that a request waits for the database."""
LATE_S = 8.0
"""Timeout of a look-up, in seconds. A look-up continues after its request has stopped waiting, and its result
is cached.

Otherwise an overloaded router, whose own look-ups are slow, would lose its whole cache. The timeout is less
than `KEPT_S`, because the age of a result counts from the start of its query."""
MOST_KEYS = 10_000
"""Maximum number of cached keys, including keys that do not exist."""
LOG_EVERY_S = 10.0
Result = TypeVar("Result")


class KeyFinder(Protocol):
    """Storage of API keys."""

    async def find(self, hash: str) -> KeyInfo | None:
        """Return the key with this hash, or None if there is none.

        Raises:
            StoreUnavailable: the database cannot be reached.
        """
        ...

    async def has_keys(self) -> bool:
        """Return whether any key was ever created. Expired and revoked keys count too.

        Raises:
            StoreUnavailable: the database cannot be reached.
        """
        ...


class Authenticator:
    """Finds the caller of a request by its API key, with a cache.

    Args:
        finder: the storage of keys, or None if there are no keys.
        clock: monotonic clock in seconds, for the age of cached results.
        now_s: clock for the time of day, for the expiry of keys.
        kept_s: seconds for which a cached result is used while the database is unreachable.
    """

    def __init__(
        self,
        finder: KeyFinder | None = None,
        clock: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
        kept_s: float = KEPT_S,
    ) -> None:
        self._kept_s = kept_s
        self._finder, self._clock, self._now_s = finder, clock, now_s
        self._keys = OrderedDict[str, tuple[float, KeyInfo | None]]()
        self._has_keys, self._asked_s = False, float("-inf")
        self._lookups = dict[str, asyncio.Task[Any]]()
        self._forgot_s = self._logged_s = float("-inf")

    async def is_open(self) -> bool:
        """Return whether requests need no key, because none has ever been created.

        Raises:
            StoreUnavailable: the database cannot be reached.
        """
        if self._has_keys or self._finder is None:
            return not self._has_keys
        if self._clock() - self._asked_s >= FRESH_S:
            finder = self._finder
            lookup = self._once("", lambda: self._look_for_keys(finder))
            self._asked_s, self._has_keys = await self._answer(lookup)
        return not self._has_keys

    async def caller(self, credential: str) -> Caller:
        """Return the caller whose key is `credential`.

        Raises:
            Unauthenticated: `credential` is not a key, or the key is unknown, expired, revoked or switched
                off. The message does not contain the key.
            StoreUnavailable: the database cannot be reached.
        """
        hash = hash_key(credential)
        if hash not in self._keys:  # a hash that was looked up before is one of a well-formed key
            try:
                ApiKey(credential)
            except KeyFormError as exc:
                raise unauthenticated(f"Malformed API key. {exc}") from None
        key_info = await self._find(hash)
        if key_info is None:
            raise unauthenticated("Unknown API key. It belongs to another server, or its secret was rotated.")
        check_in_force(key_info, int(self._now_s() * US))
        return key_info.caller

    def forget(self) -> None:
        """Clear the cache. Call it after a key, a team or a policy was changed through this replica."""
        self._keys.clear()
        self._lookups.clear()  # requests that wait still get the result, but it is not cached
        self._asked_s, self._forgot_s = float("-inf"), self._clock()

    async def _find(self, hash: str) -> KeyInfo | None:
        asked_s, known = self._keys.get(hash, (float("-inf"), None))
        age_s, finder = self._clock() - asked_s, self._finder
        if age_s < RENEWED_S or finder is None:
            return known
        looking_up = self._once(hash, lambda: self._look_up(hash, finder))
        if age_s < FRESH_S:
            return known
        try:
            return await self._answer(looking_up)
        except StoreUnavailable:
            if self._clock() - asked_s < self._kept_s:
                return known
            raise

    async def _look_for_keys(self, finder: KeyFinder) -> tuple[float, bool]:
        asked_s = self._clock()
        return asked_s, await finder.has_keys()

    async def _look_up(self, hash: str, finder: KeyFinder) -> KeyInfo | None:
        asked_s = self._clock()
        key_info = await finder.find(hash)
        if asked_s > self._forgot_s:
            self._keys[hash] = (asked_s, key_info)
            self._keys.move_to_end(hash)
            while len(self._keys) > MOST_KEYS:
                self._keys.popitem(last=False)
        return key_info

    def _once(self, name: str, look_up: Callable[[], Awaitable[Result]]) -> "asyncio.Task[Result]":
        """Return the running look-up with this name, or start one. Concurrent requests share a look-up."""
        task: asyncio.Task[Result] | None = self._lookups.get(name)
        if task is None:
            task = asyncio.create_task(self._bound(look_up), name="look up a key")
            self._lookups[name] = task
            task.add_done_callback(lambda done: self._end(name, done))
        return task

    async def _answer(self, lookup: "asyncio.Task[Result]") -> Result:
        """Wait for a look-up. The look-up continues if the request is cancelled or stops waiting."""
        try:
            async with asyncio.timeout(LOOKUP_S):
                return await asyncio.shield(lookup)
        except TimeoutError:
            raise _unavailable(f"The database did not respond within {LOOKUP_S:g} s.") from None

    def _end(self, name: str, done: "asyncio.Task[Any]") -> None:
        if self._lookups.get(name) is done:
            del self._lookups[name]
        error = None if done.cancelled() else done.exception()
        if error is not None and self._clock() - self._logged_s > LOG_EVERY_S:
            self._logged_s = self._clock()
            detail = getattr(error, "detail", "") or type(error).__name__
            logger.error("Key store unreachable; rejecting keys that are not cached: %s", detail)

    async def _bound(self, look_up: Callable[[], Awaitable[Result]]) -> Result:
        try:
            async with asyncio.timeout(LATE_S):
                return await look_up()
        except TimeoutError:
            raise _unavailable(f"The database did not respond within {LATE_S:g} s.") from None
        except StoreError as exc:  # only the operator can fix it
            raise _unavailable(exc.message) from None


def _unavailable(detail: str) -> StoreUnavailable:
    return StoreUnavailable("API keys cannot be checked at the moment. Try again soon.", detail=detail)


HOW = "Send a key as `Authorization: Bearer pk_…` or `x-api-key: pk_…`."


def check_in_force(key: KeyInfo, now_us: int) -> None:
    """Check that a key is active at `now_us`.

    Raises:
        Unauthenticated: the key is expired or revoked, or its team is switched off.
    """
    match key.state(now_us):
        case "active":
            return
        case "expired":
            raise unauthenticated(f"This API key expired at {iso(key.expires_us)}.")
        case "revoked":
            raise unauthenticated("This API key was revoked.")
        case "team off":
            raise unauthenticated("The team of this API key is disabled.")


def unauthenticated(why: str) -> Unauthenticated:
    """Return the error for a request whose key is missing or not accepted."""
    return Unauthenticated(f"{why} {HOW}", param="Authorization")
