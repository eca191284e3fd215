"""From the credential of a request to its caller: looked up in the database, and remembered for seconds.

What is remembered is the delay of a revocation: at most `FRESH_S`, and `KEPT_S` while the database does not
answer (`KEPT_AWAY_S` where the settings say so). Without any answer nobody is let in.
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
"""What was looked up is believed so long; after the second time it is looked up again, while nobody waits for that. Else all who
come during a look-up would go on at one moment, and a busy loop would never get out of step.
"""
KEPT_S = 9.0
"""And so long where the database does not answer: less than the 10 s in which a revocation must hold."""
KEPT_AWAY_S = 3600.0
"""Where the settings would rather serve than be strict (`store.when_away: serve`)."""
LOOKUP_S = 3.0
"""Nobody waits longer for a database to answer."""
LATE_S = 8.0
"""An answer that comes before is remembered, though those who asked wait no longer: a router with more to do than it can
do is late itself, and would know no key any more. Less than `KEPT_S`, since it says how things were when it was asked.
"""
MOST_KEYS = 10_000
"""Remembered at once, keys that do not exist included."""
LOG_EVERY_S = 10.0
Found = TypeVar("Found")


class KeyFinder(Protocol):
    """Where keys are looked up."""

    async def find(self, hash: str) -> KeyInfo | None:
        """The key of that hash.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        ...

    async def has_keys(self) -> bool:
        """Whether a key was ever made, in force or not. It stays true.

        Raises:
            StoreUnavailable: the database does not answer.
        """
        ...


class Authenticator:
    """Tells who calls.

    Args:
        finder: where keys are looked up; None: there is no place for keys, and no key.
        clock: seconds, for what is remembered.
        now_s: the time of day, for keys that expire.
        kept_s: how long what was looked up is believed while the database does not answer.
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
        """Whether no key has ever been made, so that none is asked for.

        Raises:
            StoreUnavailable: nobody can say.
        """
        if self._has_keys or self._finder is None:
            return not self._has_keys
        if self._clock() - self._asked_s >= FRESH_S:
            finder = self._finder
            asked = self._once("", lambda: self._look_for_keys(finder))
            self._asked_s, self._has_keys = await self._answer(asked)
        return not self._has_keys

    async def caller(self, credential: str) -> Caller:
        """Who sent `credential`.

        Raises:
            Unauthenticated: it is no key, or none that is in force. The message does not show it.
            StoreUnavailable: nobody can say.
        """
        hash = hash_key(credential)
        if hash not in self._keys:  # what was looked up before has the form of a key
            try:
                ApiKey(credential)
            except KeyFormError as exc:
                raise unauthenticated(f"The key that was sent is none. {exc}") from None
        found = await self._find(hash)
        if found is None:
            raise unauthenticated("The key is not known here: it is another server's, or has been replaced.")
        check_in_force(found, int(self._now_s() * US))
        return found.caller

    def forget(self) -> None:
        """Look everything up again: something has changed, and this replica knows it."""
        self._keys.clear()
        self._lookups.clear()  # whoever waits for one gets its answer; it is not remembered
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
        found = await finder.find(hash)
        if asked_s > self._forgot_s:
            self._keys[hash] = (asked_s, found)
            self._keys.move_to_end(hash)
            while len(self._keys) > MOST_KEYS:
                self._keys.popitem(last=False)
        return found

    def _once(self, name: str, look_up: Callable[[], Awaitable[Found]]) -> "asyncio.Task[Found]":
        """What is going to be what `look_up` gives; those who ask the same at once share one question."""
        task: asyncio.Task[Found] | None = self._lookups.get(name)
        if task is None:
            task = asyncio.create_task(self._bound(look_up), name="look up a key")
            self._lookups[name] = task
            task.add_done_callback(lambda done: self._end(name, done))
        return task

    async def _answer(self, asked: "asyncio.Task[Found]") -> Found:
        """Who asks ends the look-up neither by leaving, nor by waiting no longer."""
        try:
            async with asyncio.timeout(LOOKUP_S):
                return await asyncio.shield(asked)
        except TimeoutError:
            raise _unavailable(f"the database did not answer within {LOOKUP_S:g} s") from None

    def _end(self, name: str, done: "asyncio.Task[Any]") -> None:
        if self._lookups.get(name) is done:
            del self._lookups[name]
        error = None if done.cancelled() else done.exception()
        if error is not None and self._clock() - self._logged_s > LOG_EVERY_S:
            self._logged_s = self._clock()
            detail = getattr(error, "detail", "") or type(error).__name__
            logger.error("Keys cannot be looked up, and nobody new is let in: %s", detail)

    async def _bound(self, look_up: Callable[[], Awaitable[Found]]) -> Found:
        try:
            async with asyncio.timeout(LATE_S):
                return await look_up()
        except TimeoutError:
            raise _unavailable(f"the database did not answer within {LATE_S:g} s") from None
        except StoreError as exc:  # the operator's to put right
            raise _unavailable(exc.message) from None


def _unavailable(detail: str) -> StoreUnavailable:
    return StoreUnavailable("The server cannot look keys up at the moment. Try again soon.", detail=detail)


HOW = "Send one as `Authorization: Bearer pk_…` or as `x-api-key: pk_…`."


def check_in_force(key: KeyInfo, now_us: int) -> None:
    """Refuse a key that lets nobody in at that time.

    Raises:
        Unauthenticated: it says why.
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
    """The error for a request whose key is missing or not in force."""
    return Unauthenticated(f"{why} {HOW}", param="Authorization")
