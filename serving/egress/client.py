"""The guard of every HTTP client that calls out: where it connects is checked when it connects, after names
are resolved, it follows no redirect, and a kept connection that breaks is replaced once.

The SDKs bring clients of two kinds: httpx2's own transport, on httpcore2, and one on aiohttp. Neither has a
public place for this, so `guard` puts it into the transports that a client has, those for the environment's
proxies included, and refuses a client whose transport it does not know.
"""

import asyncio
import errno
import os
import socket
import ssl
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import aiohttp
import httpcore2
import httpx2
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from serving.egress.reach import Reach

Client = TypeVar("Client", bound=httpx2.AsyncClient)


def guard(client: Client, reach: Reach) -> Client:
    """The client, which from now on connects within `reach` only. Called before its first request.

    What a proxy of the environment is asked for is checked by its spelling alone: the proxy resolves names.

    Raises:
        TypeError: it has a transport that cannot be guarded.
    """

    async def check_host(request: httpx2.Request) -> None:
        reach.check_host(request.url.host)

    client.follow_redirects = False
    client.event_hooks["request"].append(check_host)
    inside = cast(Any, client)
    for transport in (inside._transport, *inside._mounts.values()):  # noqa: SLF001
        if transport is not None:
            _guard_transport(transport, reach, client.timeout.connect)
            _replace_kept(transport)
    return client


class DirectPost:
    """POST over the aiohttp sessions under an SDK's guarded client, past httpx2, whose layers take more CPU than aiohttp
    itself. Addresses, proxies, time limits and the replacement of kept connections are the client's.

    Args:
        client: guarded; its transports are aiohttp's.
        reach: with which it was guarded.
    """

    def __init__(self, client: httpx2.AsyncClient, reach: Reach) -> None:
        limits = client.timeout
        self._client, self._reach = cast(Any, client), reach
        self._timeout = aiohttp.ClientTimeout(
            sock_connect=limits.connect, sock_read=limits.read, connect=limits.pool
        )
        self._known = dict[httpx2.URL, tuple[URL, Any]]()
        """Each address as aiohttp takes it, and the transport that leads there."""

    async def __call__(self, url: httpx2.URL, content: bytes, headers: Any) -> aiohttp.ClientResponse:
        """Send a request. Return the response, its body unread; the caller closes it.

        Raises:
            AddressForbidden: the address is out of reach.
            RuntimeError: the client is closed.
            aiohttp.ClientError: there is no response.
        """
        if self._client.is_closed:
            raise RuntimeError("The client is closed.")
        address, transport = self._known.get(url) or self._find(url)
        if not isinstance(transport.client, aiohttp.ClientSession):
            transport.client = transport.get_client()
        session, proxy, is_kept = transport.client, transport.proxy, _has_idle(transport)
        more: dict[str, Any] = (
            {
                "proxy": str(proxy.url),
                "proxy_auth": aiohttp.BasicAuth(*proxy.auth) if proxy.auth else None,
                "proxy_headers": proxy.headers,
            }
            if proxy
            else {}
        )
        for can_repeat in (is_kept, False):
            try:
                return await session.request(
                    "POST",
                    address,
                    data=content,
                    headers=headers,
                    timeout=self._timeout,
                    allow_redirects=False,
                    auto_decompress=False,
                    **more,
                )
            except aiohttp.ClientError as exc:
                if not (can_repeat and _is_break(exc)):
                    raise
            await _close_idle(transport)
        raise AssertionError("the second attempt returns or raises")

    def _find(self, url: httpx2.URL) -> tuple[URL, Any]:
        self._reach.check_host(url.host)
        found = self._known[url] = URL(str(url)), self._client._transport_for_url(url)  # noqa: SLF001
        return found


def open_client(reach: Reach, timeout_s: float, *, use_proxies: bool = False) -> httpx2.AsyncClient:
    """A guarded client for addresses that no SDK is for.

    Args:
        reach: where it may connect.
        timeout_s: for each of connecting, sending and waiting.
        use_proxies: whether the environment's proxies are asked. Never for an address from a request: what
            a name leads to is then out of our sight.
    """
    http = httpx2.AsyncClient(timeout=timeout_s, trust_env=use_proxies, verify=tls_context())
    return guard(http, reach)


def tls_context() -> ssl.SSLContext:
    """TLS to servers that an authority vouches for which this machine trusts, or which `SSL_CERT_FILE` or `SSL_CERT_DIR`
    names. One for all clients: reading some hundred and forty certificates takes 40 ms of CPU. A file that was written
    anew is read again, for the clients that are made then.
    """
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    written_ns = Path(file).stat().st_mtime_ns if file and Path(file).exists() else None
    return _make_tls_context(file, folder, written_ns)


@lru_cache(maxsize=4)
def _make_tls_context(_file: str | None, _folder: str | None, _written_ns: int | None) -> ssl.SSLContext:
    return httpx2.create_ssl_context()


def _guard_transport(transport: object, reach: Reach, timeout_s: float | None) -> None:
    if isinstance(transport, httpx2.AsyncHTTPTransport):
        cast(Any, transport)._pool._network_backend = GuardedBackend(reach)  # noqa: SLF001
    elif hasattr(transport, "get_client") and hasattr(transport, "ssl_context"):  # aiohttp's
        of_aiohttp = cast(Any, transport)
        of_aiohttp.client = lambda: _guarded_session(of_aiohttp, reach, timeout_s)
    else:
        raise TypeError(f"{type(transport).__name__} is a transport that cannot be guarded.")


def _replace_kept(transport: Any) -> None:
    """Let `transport` send a request once more, at once, if it broke on a kept connection before an answer began.

    Servers close connections that they have kept for long, and all of them when they restart: the request was not read.
    The other idle connections are closed first, since they are probably broken too.
    """
    send = transport.handle_async_request

    async def send_again(request: httpx2.Request) -> httpx2.Response:
        is_kept = _has_idle(transport)
        try:
            return await send(request)
        except httpx2.TransportError as exc:
            if not (is_kept and _is_break(exc) and isinstance(request.stream, httpx2.ByteStream)):
                raise
        await _close_idle(transport)
        return await send(request)

    transport.handle_async_request = send_again


def _is_break(exc: Exception) -> bool:
    """Return whether a connection that was open broke; aiohttp's transport calls it a time-out in connecting."""
    cause = exc if isinstance(exc, aiohttp.ClientError) else exc.__cause__
    if isinstance(cause, aiohttp.ClientError):
        is_other = isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ServerTimeoutError)
        return isinstance(cause, aiohttp.ClientOSError | aiohttp.ServerDisconnectedError) and not is_other
    return isinstance(exc, httpx2.ReadError | httpx2.WriteError | httpx2.RemoteProtocolError)


def _has_idle(transport: Any) -> bool:
    if isinstance(transport, httpx2.AsyncHTTPTransport):
        return any(each.is_idle() for each in cast(Any, transport)._pool.connections)  # noqa: SLF001
    connector = getattr(transport.client, "connector", None)
    return bool(connector and connector._conns)  # noqa: SLF001


async def _close_idle(transport: Any) -> None:
    if isinstance(transport, httpx2.AsyncHTTPTransport):
        pool = cast(Any, transport)._pool  # noqa: SLF001
        idle = [each for each in pool.connections if each.is_idle()]
        for each in idle:  # all before the first is closed: meanwhile other calls would be given them
            pool._connections.remove(each)  # noqa: SLF001
        for each in idle:
            await each.aclose()
        return
    kept = transport.client.connector._conns  # noqa: SLF001
    for protocol, _ in [each for of_host in kept.values() for each in of_host]:
        protocol.close()
    kept.clear()


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """httpcore2's sockets, opened to addresses within `reach`."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._inner = cast(httpcore2.AsyncNetworkBackend, httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (the base class's)
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address of `host` that answers.

        Raises:
            AddressForbidden: one of them is beyond reach.
            httpcore2.ConnectError, httpcore2.ConnectTimeout: none answers.
        """
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                found = await self._reach.resolve(host)
        except TimeoutError as exc:  # an OSError too
            raise httpcore2.ConnectTimeout(str(exc)) from exc
        except OSError as exc:
            raise httpcore2.ConnectError(str(exc)) from exc
        failure: Exception = httpcore2.ConnectError("It has no address.")
        for index, (_, address) in enumerate(found):
            share_s = None
            if timeout is not None:  # what is left, shared: one that is silent leaves time for the others
                share_s = max(0.0, timeout - (time.monotonic() - began_s)) / (len(found) - index)
            try:
                return await self._inner.connect_tcp(address, port, share_s, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as exc:
                failure = exc
        raise failure

    async def sleep(self, seconds: float) -> None:
        """See the base class."""
        await self._inner.sleep(seconds)


class GuardedResolver(AbstractResolver):
    """aiohttp's resolver; gives addresses within `reach`.

    Args:
        reach: where it may lead.
        timeout_s: of a look-up, which aiohttp's time to connect leaves out; None: no limit.
    """

    def __init__(self, reach: Reach, timeout_s: float | None) -> None:
        self._reach, self._timeout_s = reach, timeout_s

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """See the base class.

        Raises:
            AddressForbidden: one of them is beyond reach.
            OSError: there is none, or it takes too long to find.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._reach.resolve(host)
        except TimeoutError as exc:
            raise OSError(errno.ETIMEDOUT, f"The look-up of {host} took too long.") from exc
        return [
            ResolveResult(
                hostname=host, host=address, port=port, family=of, proto=0, flags=socket.AI_NUMERICHOST
            )
            for of, address in found
            if family in (socket.AF_UNSPEC, of)
        ]

    async def close(self) -> None:
        """See the base class."""


def _guarded_session(transport: Any, reach: Reach, timeout_s: float | None) -> aiohttp.ClientSession:
    """As the transport would make it, with the guard before each socket: a literal address, such as a
    proxy's, is not asked of the resolver.
    """

    def open_socket(address: "tuple[int, int, int, str, tuple[Any, ...]]") -> socket.socket:
        family, kind, protocol, _, where = address
        reach.check(str(where[0]))
        return socket.socket(family, kind, protocol)

    connector = aiohttp.TCPConnector(
        limit=transport.limits.max_connections or 0,
        keepalive_timeout=transport.limits.keepalive_expiry,
        ssl=transport.ssl_context,
        resolver=GuardedResolver(reach, timeout_s),
        use_dns_cache=False,  # names are kept for all clients together
        socket_factory=open_socket,
    )
    return aiohttp.ClientSession(connector=connector)
