"""Authentication: find the caller for a request's key in the database, and cache the result for seconds.

The cache delays a revocation: by at most `FRESH_S`, or `KEPT_S` while the database is unreachable
(`KEPT_AWAY_S` if the settings say so). Without a cached result, requests are then rejected.
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
"""Seconds for which a cached result is used. After `RENEWED_S` it is refreshed in the background.

Without the early refresh, all requests that arrive during a look-up would continue at the same moment, and a
busy event loop would never spread them out again."""
KEPT_S = 9.0
"""Seconds for which a cached result is used while the database is unreachable. Less than the 10 s within
which a revocation must take effect."""
KEPT_AWAY_S = 3600.0
"""The same if the settings prefer to serve (`store.when_away: serve`)."""
LOOKUP_S = 3.0
"""Longest time that a request waits for the database, in seconds."""
LATE_S = 8.0
"""Timeout of a look-up, in seconds. A result that arrives in time is cached, even if the request has stopped
waiting.

Otherwise an overloaded router, which is slow itself, would lose its whole cache. It is less than `KEPT_S`,
because a result is as old as its query."""
MOST_KEYS = 10_000
"""Maximum number of cached keys, including keys that do not exist."""
LOG_EVERY_S = 10.0
Result = TypeVar("Result")


class KeyFinder(Protocol):
    """Storage in which keys are looked up."""

    async def find(self, hash: str) -> KeyInfo | None:
        """Return the key with this hash, or None if there is none.

        Raises:
            StoreUnavailable: the database cannot be reached.
        """
        ...

    async def has_keys(self) -> bool:
        """Return whether any key was ever made, in force or not. Once true, it stays true.

        Raises:
            StoreUnavailable: the database cannot be reached.
        """
        ...


class Authenticator:
    """Finds the caller of a request.

    Args:
        finder: storage of keys. None: there are no keys.
        clock: monotonic clock for the cache, in seconds.
        now_s: clock for the time of day, for keys that expire.
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
        """Return whether no key has ever been made, so that requests need none.

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
        """Return the caller that sent `credential`.

        Raises:
            Unauthenticated: it is not a key, or not in force. The message does not contain it.
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
            raise unauthenticated("Unknown API key: it belongs to another server, or has been replaced.")
        check_in_force(key_info, int(self._now_s() * US))
        return key_info.caller

    def forget(self) -> None:
        """Clear the cache, because something has changed on this replica."""
        self._keys.clear()
        self._lookups.clear()  # waiting requests still get the result; it is not cached
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
        """Return the running look-up of this name, or start one. Concurrent requests share it."""
        task: asyncio.Task[Result] | None = self._lookups.get(name)
        if task is None:
            task = asyncio.create_task(self._bound(look_up), name="look up a key")
            self._lookups[name] = task
            task.add_done_callback(lambda done: self._end(name, done))
        return task

    async def _answer(self, lookup: "asyncio.Task[Result]") -> Result:
        """Wait for a look-up. It continues if the request is cancelled or stops waiting."""
        try:
            async with asyncio.timeout(LOOKUP_S):
                return await asyncio.shield(lookup)
        except TimeoutError:
            raise _unavailable(f"the database did not answer within {LOOKUP_S:g} s") from None

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
            raise _unavailable(f"the database did not answer within {LATE_S:g} s") from None
        except StoreError as exc:  # only the operator can fix it
            raise _unavailable(exc.message) from None


def _unavailable(detail: str) -> StoreUnavailable:
    return StoreUnavailable("API keys cannot be checked at the moment. Try again soon.", detail=detail)


HOW = "Send a key as `Authorization: Bearer pk_…` or as `x-api-key: pk_…`."


def check_in_force(key: KeyInfo, now_us: int) -> None:
    """Check that a key is accepted at `now_us`.

    Raises:
        Unauthenticated: the key is not accepted. The message says why.
    """
    match key.state(now_us):
        case "active":
            return
        case "expired":
            raise unauthenticated(f"The key expired at {iso(key.expires_us)}.")
        case "revoked":
            raise unauthenticated("The key has been revoked.")
        case "team off":
            raise unauthenticated("The team of the key is switched off.")


def unauthenticated(why: str) -> Unauthenticated:
    """Return the error for a request whose key is missing or not in force."""
    return Unauthenticated(f"{why} {HOW}", param="Authorization")
