"""Authentication: the only module that reads credentials.

The edge calls `authenticate` before a request reaches the routes. It removes the key from the request, so
that no later code can log it or pass it on, and puts a `Caller` into the scope. `route_access.py` has the scope
that each route needs.

The `Authenticator` finds the caller in the database, and caches the result for a few seconds. Because of the
cache, a revoked key may still be accepted for `FRESH_S` seconds. While the database is unreachable, it may be
accepted for `KEPT_S` seconds, or `KEPT_AWAY_S` if `store.when_away` is `serve`. Requests whose key is not
cached are rejected while the database is unreachable.
"""

import asyncio
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.types import Scope

from conductor.errors import NotAllowed, StoreUnavailable
from serving.accounts.caller import ANONYMOUS, Caller
from serving.accounts.key_info import US, KeyInfo, check_in_force, unauthenticated
from serving.accounts.keys import ApiKey, KeyFormError, hash_key
from serving.database.address import StoreError
from serving.edge.checks import is_loopback
from serving.edge.exchange import ALIVE, READY

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
CALLER = "podium.caller"
"""Key in an ASGI scope for the `Caller`."""
STILL = "podium.still"
"""Key in an ASGI scope for a function that checks the API key again, and does not show it."""
CONSOLE = "/console"
"""Path of the console. It is public, including its subpaths, because the page asks its user for a key.
`ALIVE` is public too, and `/` for browsers. Without a key, `READY` returns only the status.
"""
Headers = Iterable[tuple[bytes, bytes]]
AUTHORIZATION, API_KEY = b"authorization", b"x-api-key"
CLIENTS = (b"x-forwarded-for", b"x-real-ip")
"""Headers in which proxies name the client."""
BEHIND_HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"
"""Ray Serve's variable; "1" if HAProxy accepts the connections."""
FIRST_KEY = (
    "This server has no API keys yet, so it accepts only local requests. On its machine, create a key with "
    "`podium keys create NAME --scopes admin`, and send it as `Authorization: Bearer pk_…`."
)


class KeyFinder(Protocol):
    async def find(self, hash: str) -> KeyInfo | None:
        """Return the key with this hash, or None. Raise StoreUnavailable if the database cannot be reached."""
        ...

    async def has_keys(self) -> bool:
        """Return whether any key was ever created, even an expired or revoked one."""
        ...


class Authenticator:
    """Finds the caller of a request by its API key, with a cache. While the database is unreachable, results
    are used for `kept_s` seconds.
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
        """Return whether requests need no key, because none has ever been created."""
        if self._has_keys or self._finder is None:
            return not self._has_keys
        if self._clock() - self._asked_s >= FRESH_S:
            finder = self._finder
            lookup = self._once("", lambda: self._look_for_keys(finder))
            self._asked_s, self._has_keys = await self._answer(lookup)
        return not self._has_keys

    async def caller(self, credential: str) -> Caller:
        """Return the caller whose key is `credential`. The Unauthenticated for other credentials does not
        contain them.
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
        asked_s, key_info = self._keys.get(hash, (float("-inf"), None))
        age_s, finder = self._clock() - asked_s, self._finder
        if age_s < RENEWED_S or finder is None:
            return key_info
        looking_up = self._once(hash, lambda: self._look_up(hash, finder))
        if age_s < FRESH_S:
            return key_info
        try:
            return await self._answer(looking_up)
        except StoreUnavailable:
            if self._clock() - asked_s < self._kept_s:
                return key_info
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


async def authenticate(authenticator: Authenticator, scope: Scope) -> None:
    """Find the caller by the key in the scope, and replace the key by the `Caller`, or raise NotAllowed."""
    headers, path = scope["headers"], scope["path"]
    scope["headers"] = [each for each in headers if each[0] not in (AUTHORIZATION, API_KEY)]
    if path in (ALIVE, CONSOLE) or path.startswith(f"{CONSOLE}/") or is_browser_at_root(scope):
        return
    server = (scope.get("server") or ("",))[0]
    try:
        scope[CALLER] = await _find_caller(authenticator, server, headers)
        scope[STILL] = _check_again(authenticator, server, headers, scope[CALLER])
    except (NotAllowed, StoreUnavailable):
        if path != READY:
            raise


def is_browser_at_root(scope: Scope) -> bool:
    """Return whether a browser opens `/`. It is recognized by `Accept`, in which API clients do not name HTML."""
    if scope["path"] != "/" or scope["method"] not in ("GET", "HEAD"):
        return False
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


async def _find_caller(authenticator: Authenticator, server: str, headers: Headers) -> Caller:
    if await authenticator.is_open():
        if not _is_local(server, headers):
            raise NotAllowed(FIRST_KEY, param="Authorization")
        return ANONYMOUS
    credential = read_credential(headers)
    if credential is None:
        raise unauthenticated("An API key is required.")
    return await authenticator.caller(credential)


def _check_again(
    authenticator: Authenticator, server: str, headers: Headers, caller: Caller
) -> Callable[[], Awaitable[bool]]:
    async def is_accepted() -> bool:
        try:
            now = await _find_caller(authenticator, server, headers)
        except (NotAllowed, StoreUnavailable):
            return False
        return now.scopes >= caller.scopes

    return is_accepted


def read_credential(headers: Headers) -> str | None:
    """Return the key from `Authorization: Bearer` or `x-api-key`, or None. Reject two different ones."""
    credentials: set[str] = set()
    for name, value in headers:
        if name == AUTHORIZATION:
            credentials.add(_bearer(value))
        elif name == API_KEY:
            credentials.add(_text(value))
    if len(credentials) > 1:
        raise unauthenticated("The request contains two different API keys.")
    return next(iter(credentials), None)


def caller_of(request: Request) -> Caller:
    return caller_in(request.scope)


def caller_in(scope: Scope) -> Caller:
    """Return the caller of `scope`. Raise Unauthenticated without a key, possible only on `READY`."""
    caller: Caller | None = scope.get(CALLER)
    if caller is None:
        raise unauthenticated("An API key is required.")
    return caller


async def is_still_accepted(request: Request) -> bool:
    """Return whether a long request's key is still accepted and has lost no scope. The key is looked up every few
    seconds.
    """
    look: Callable[[], Awaitable[bool]] = request.scope[STILL]
    return await look()


def _bearer(value: bytes) -> str:
    scheme, _, credential = _text(value).partition(" ")
    if scheme.lower() != "bearer":
        raise unauthenticated("The Authorization header must use the scheme `Bearer`.")
    return credential.strip()


def _text(value: bytes) -> str:
    return value.decode("latin-1").strip()


def _is_local(server: str, headers: Headers) -> bool:
    """Return whether the request comes from this machine: to its loopback address `server`, and not through a
    proxy for another machine.

    HAProxy connects to replicas over loopback even for requests from other machines, and names the client in
    a header. So behind HAProxy, a request without that header is not local.
    """
    header_values = [_text(value) for name, value in headers if name in CLIENTS]
    if not header_values and os.environ.get(BEHIND_HAPROXY) == "1":
        return False
    clients = [client.strip() for value in header_values for client in value.split(",")]
    return all(map(is_loopback, (server, *clients)))
