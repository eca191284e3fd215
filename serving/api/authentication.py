"""Authentication: the only module that reads credentials.

The edge calls `authenticate` before a request reaches the routes. It removes the key from the request, so
that no later code can log it or pass it on, and puts a `Caller` into the scope. `access.py` has the scope
that each route needs.
"""

import os
from collections.abc import Awaitable, Callable, Iterable

from starlette.requests import Request
from starlette.types import Scope

from conductor.errors import NotAllowed, StoreUnavailable
from serving.accounts.authenticator import Authenticator, unauthenticated
from serving.accounts.caller import ANYBODY, Caller
from serving.edge.capacity import ALIVE, READY
from serving.edge.checks import is_loopback

CALLER = "podium.caller"
"""Key in an ASGI scope for the `Caller`."""
STILL = "podium.still"
"""Key in an ASGI scope for a function that checks the API key again. The function's `repr` does not show the
key.
"""
CONSOLE = "/console"
"""Path of the console. It is public, including its subpaths, because the page asks its user for a key.
`ALIVE` is public too. Without a key, `READY` returns only the status.
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


async def authenticate(authenticator: Authenticator, scope: Scope) -> None:
    """Find the caller of a request by its API key. Put the `Caller` into the scope, and remove the key from
    it.

    Raises:
        NotAllowed: the caller may not use this server.
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
        raise unauthenticated("An API key is required.")
    return await authenticator.caller(credential)


def _check_again(
    authenticator: Authenticator, server: str, headers: Headers
) -> Callable[[], Awaitable[bool]]:
    async def is_accepted() -> bool:
        try:
            await _find_caller(authenticator, server, headers)
        except (NotAllowed, StoreUnavailable):
            return False
        return True

    return is_accepted


def read_credential(headers: Headers) -> str | None:
    """Return the key of a request, from `Authorization: Bearer` or `x-api-key`, or None if there is none.

    Raises:
        Unauthenticated: the request has two keys that differ, or a credential of another kind.
    """
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
    """Return the caller of a request; see `caller_in`."""
    return caller_in(request.scope)


def caller_in(scope: Scope) -> Caller:
    """Return the caller of the request of `scope`.

    Raises:
        Unauthenticated: the request has no key. This happens only on `READY`.
    """
    caller: Caller | None = scope.get(CALLER)
    if caller is None:
        raise unauthenticated("An API key is required.")
    return caller


async def is_still_accepted(request: Request) -> bool:
    """Return whether the key of a long request is still accepted. The key is looked up only every few
    seconds, however often this is called.
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
    named = [_text(value) for name, value in headers if name in CLIENTS]
    if not named and os.environ.get(BEHIND_HAPROXY) == "1":
        return False
    clients = [client.strip() for value in named for client in value.split(",")]
    return all(map(is_loopback, (server, *clients)))
