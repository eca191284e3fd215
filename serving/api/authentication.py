"""The one place that reads a credential.

Stands between the edge and the routes. It tells who calls, takes the key out of the request, so that
nothing behind it can log it or pass it on, and leaves a `Caller` in the scope. Which scope a route takes is
in the table of `access.py`.
"""

import os
from collections.abc import Awaitable, Callable, Iterable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from conductor.errors import NotAllowed, StoreUnavailable
from serving.accounts.authenticator import Authenticator, unauthenticated
from serving.accounts.caller import ANYBODY, Caller
from serving.api.respond import failure
from serving.edge.checks import is_loopback

CALLER = "podium.caller"
"""In a scope: the `Caller`."""
STILL = "podium.still"
"""In a scope: what looks again whether its caller is let in. The key is nowhere to be seen in it."""
ALIVE = "/healthz"
"""Told to everybody."""
CONSOLE = "/console"
"""Told to everybody, with what is below it: a page that asks for a key itself."""
READY = "/readyz"
"""Its status is told to everybody, and no more than that: see `health.readyz`."""
Headers = Iterable[tuple[bytes, bytes]]
AUTHORIZATION, API_KEY = b"authorization", b"x-api-key"
CLIENTS = (b"x-forwarded-for", b"x-real-ip")
"""Headers in which proxies name their clients."""
BEHIND_HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"
"""Ray Serve's variable; "1" if HAProxy accepts the connections."""
POLICY_VIOLATION = 1008
FIRST_KEY = (
    "No key has been made for this server, so it serves its own machine only. Make the first one there, with "
    "`podium keys create NAME --scopes admin`, and send it as `Authorization: Bearer pk_…`."
)


class Authentication:
    """Guards `app`.

    Args:
        app: the routes.
        authenticator: who knows the keys.
    """

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self._app, self._authenticator = app, authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":  # nothing else is served, and nobody has looked at its key
            return await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        headers, path = scope["headers"], scope["path"]
        scope["headers"] = [each for each in headers if each[0] not in (AUTHORIZATION, API_KEY)]
        if path not in (ALIVE, CONSOLE) and not path.startswith(f"{CONSOLE}/"):
            try:
                scope[CALLER] = await self._caller(scope, headers)
                scope[STILL] = self._check_again(scope, headers)
            except (NotAllowed, StoreUnavailable) as exc:
                if path != READY:
                    return await failure(Request(scope), exc)(scope, receive, send)
        return await self._app(scope, receive, send)

    def _check_again(self, scope: Scope, headers: Headers) -> Callable[[], Awaitable[bool]]:
        async def is_let_in() -> bool:
            try:
                await self._caller(scope, headers)
            except (NotAllowed, StoreUnavailable):
                return False
            return True

        return is_let_in

    async def _caller(self, scope: Scope, headers: Headers) -> Caller:
        if await self._authenticator.is_open():
            if not _is_local(scope, headers):
                raise NotAllowed(FIRST_KEY, param="Authorization")
            return ANYBODY
        credential = read_credential(headers)
        if credential is None:
            raise unauthenticated("This server asks for a key.")
        return await self._authenticator.caller(credential)


def read_credential(headers: Headers) -> str | None:
    """The key that a request was sent with, in `Authorization: Bearer` or `x-api-key`; None: it has none.

    Raises:
        Unauthenticated: it has two that differ, or a credential of another kind.
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
    """Who sent `request`.

    Raises:
        Unauthenticated: nobody knows. It happens on `READY` alone.
    """
    caller: Caller | None = request.scope.get(CALLER)
    if caller is None:
        raise unauthenticated("This server asks for a key.")
    return caller


async def is_still_let_in(request: Request) -> bool:
    """Whether who sent `request` would be let in now: for answers that go on telling for long. It costs a look-up every
    few seconds, however often it is asked.
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


def _is_local(scope: Scope, headers: Headers) -> bool:
    """Return whether the request comes from this machine: to its loopback address, and not through a proxy for
    another machine.

    HAProxy connects to the replicas of its own machine by the loopback address, whoever sent the request, and
    names the sender. So behind HAProxy a request without a sender is not local.
    """
    server = (scope.get("server") or ("",))[0]
    named = [_text(value) for name, value in headers if name in CLIENTS]
    if not named and os.environ.get(BEHIND_HAPROXY) == "1":
        return False
    clients = [client.strip() for value in named for client in value.split(",")]
    return all(map(is_loopback, (server, *clients)))
