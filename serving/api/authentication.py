"""The one place that reads a credential.

The edge calls `authenticate` before a request reaches the routes. It takes the key out of the request, so that nothing
behind it can log it or pass it on, and leaves a `Caller` in the scope. Which scope a route takes is in the table of
`access.py`.
"""

import os
from collections.abc import Awaitable, Callable, Iterable

from starlette.requests import Request
from starlette.types import Scope

from conductor.errors import NotAllowed, StoreUnavailable
from serving.accounts.authenticator import Authenticator, unauthenticated
from serving.accounts.caller import ANYBODY, Caller
from serving.edge.checks import is_loopback
from serving.edge.load_shedding import ALIVE, READY

CALLER = "podium.caller"
"""In a scope: the `Caller`."""
STILL = "podium.still"
"""In a scope: a function that checks the key again. Its `repr` does not show the key."""
CONSOLE = "/console"
"""Public, with what is below it: the page asks for a key itself. So is `ALIVE`; of `READY` the status alone."""
Headers = Iterable[tuple[bytes, bytes]]
AUTHORIZATION, API_KEY = b"authorization", b"x-api-key"
CLIENTS = (b"x-forwarded-for", b"x-real-ip")
"""Headers in which proxies name their clients."""
BEHIND_HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"
"""Ray Serve's variable; "1" if HAProxy accepts the connections."""
FIRST_KEY = (
    "No key has been made for this server, so it serves its own machine only. Make the first one there, with "
    "`podium keys create NAME --scopes admin`, and send it as `Authorization: Bearer pk_…`."
)


async def authenticate(authenticator: Authenticator, scope: Scope) -> None:
    """Take the key out of the scope, and leave its `Caller` there.

    Raises:
        NotAllowed: the caller may not call this server.
        StoreUnavailable: the key cannot be looked up.
    """
    headers, path = scope["headers"], scope["path"]
    scope["headers"] = [each for each in headers if each[0] not in (AUTHORIZATION, API_KEY)]
    if path in (ALIVE, CONSOLE) or path.startswith(f"{CONSOLE}/"):
        return
    server = (scope.get("server") or ("",))[0]
    try:
        scope[CALLER] = await _find_caller(authenticator, server, headers)
        scope[STILL] = _check_again(authenticator, server, headers)
    except (NotAllowed, StoreUnavailable):
        if path != READY:
            raise


async def _find_caller(authenticator: Authenticator, server: str, headers: Headers) -> Caller:
    if await authenticator.is_open():
        if not _is_local(server, headers):
            raise NotAllowed(FIRST_KEY, param="Authorization")
        return ANYBODY
    credential = read_credential(headers)
    if credential is None:
        raise unauthenticated("This server asks for a key.")
    return await authenticator.caller(credential)


def _check_again(
    authenticator: Authenticator, server: str, headers: Headers
) -> Callable[[], Awaitable[bool]]:
    async def is_let_in() -> bool:
        try:
            await _find_caller(authenticator, server, headers)
        except (NotAllowed, StoreUnavailable):
            return False
        return True

    return is_let_in


def read_credential(headers: Headers) -> str | None:
    """Return the key of a request, from `Authorization: Bearer` or `x-api-key`, or None if there is none.

    Raises:
        Unauthenticated: the request has two keys that differ, or a credential of another kind.
    """
    found: set[str] = set()
    for name, value in headers:
        if name == AUTHORIZATION:
            found.add(_bearer(value))
        elif name == API_KEY:
            found.add(_text(value))
    if len(found) > 1:
        raise unauthenticated("The request holds two different keys, and which one is meant is not clear.")
    return next(iter(found), None)


def caller_of(request: Request) -> Caller:
    """Return who sent `request`; see `caller_in`."""
    return caller_in(request.scope)


def caller_in(scope: Scope) -> Caller:
    """Return who sent the request of `scope`.

    Raises:
        Unauthenticated: it has no key. It happens on `READY` alone.
    """
    caller: Caller | None = scope.get(CALLER)
    if caller is None:
        raise unauthenticated("This server asks for a key.")
    return caller


async def is_still_let_in(request: Request) -> bool:
    """Return whether the key of `request` is still accepted, for answers that last long. It is looked up every few seconds,
    however often this is called.
    """
    look: Callable[[], Awaitable[bool]] = request.scope[STILL]
    return await look()


def _bearer(value: bytes) -> str:
    scheme, _, credential = _text(value).partition(" ")
    if scheme.lower() != "bearer":
        raise unauthenticated("The Authorization header is not of the kind `Bearer`.")
    return credential.strip()


def _text(value: bytes) -> str:
    return value.decode("latin-1").strip()


def _is_local(server: str, headers: Headers) -> bool:
    """Return whether the request comes from this machine: to its loopback address `server`, and not through a proxy for
    another machine.

    HAProxy connects to the replicas of its own machine by the loopback address, whoever sent the request, and
    names the sender. So behind HAProxy a request without a sender is not local.
    """
    named = [_text(value) for name, value in headers if name in CLIENTS]
    if not named and os.environ.get(BEHIND_HAPROXY) == "1":
        return False
    clients = [client.strip() for value in named for client in value.split(",")]
    return all(map(is_loopback, (server, *clients)))
