"""Guard for outgoing HTTP clients.

A guarded client checks the address of each connection after the host name is resolved. It does not follow
redirects, and it replaces a broken kept-alive connection once.

The SDKs use two kinds of transports: httpx2's own, which is based on httpcore2, and one based on aiohttp.
Neither has a public hook for such checks, so `guard` changes the transports of a client, including those for
the proxies in the environment. It rejects a client with any other transport.
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
    """Restrict `client` to the addresses in `reach` before its first request, and return it.

    A proxy from the environment resolves host names, so only an IP address in the URL itself is then checked.
    Raise TypeError for a transport that cannot be guarded.
    """

    async def check_host(request: httpx2.Request) -> None:
        reach.check_host(request.url.host)

    client.follow_redirects = False
    client.event_hooks["request"].append(check_host)
    inside = cast(Any, client)
    for transport in (inside._transport, *inside._mounts.values()):  # noqa: SLF001
        if transport is not None:
            _guard_transport(transport, reach, client.timeout.connect)
            _retry_on_broken_connection(transport)
    return client


class DirectPost:
    """POST requests over the aiohttp sessions of an SDK's guarded client.

    They bypass httpx2, whose layers use more CPU than aiohttp itself. Address checks, proxies, timeouts and
    the replacement of broken connections are the same as those of the client.
    """

    def __init__(self, client: httpx2.AsyncClient, reach: Reach) -> None:
        limits = client.timeout
        self._client, self._reach = cast(Any, client), reach
        self._timeout = aiohttp.ClientTimeout(
            sock_connect=limits.connect, sock_read=limits.read, connect=limits.pool
        )
        self._targets = dict[httpx2.URL, tuple[URL, Any]]()
        """URL in aiohttp's form and transport, by the URL of a request."""

    async def __call__(self, url: httpx2.URL, content: bytes, headers: Any) -> aiohttp.ClientResponse:
        """Send a POST request, and return the response, which the caller must close, before its body is read.
        Raise AddressForbidden, or aiohttp's error without a response.
        """
        if self._client.is_closed:
            raise RuntimeError("The client is closed.")
        address, transport = self._targets.get(url) or self._find(url)
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
        target = self._targets[url] = URL(str(url)), self._client._transport_for_url(url)  # noqa: SLF001
        return target


def open_client(reach: Reach, timeout_s: float, *, use_proxies: bool = False) -> httpx2.AsyncClient:
    """Open a guarded client for requests that no SDK sends. The timeout is for connecting, sending and
    waiting each.

    Do not use proxies for an address from a request, because they resolve the host name unchecked.
    """
    http = httpx2.AsyncClient(timeout=timeout_s, trust_env=use_proxies, verify=tls_context())
    return guard(http, reach)


def tls_context() -> ssl.SSLContext:
    """Return the TLS context that all clients share.

    It trusts the certificate authorities of this machine, or those in `SSL_CERT_FILE` or `SSL_CERT_DIR`. The
    context is cached, because loading about 140 certificates takes 40 ms of CPU. If the file changes, the
    next call loads it again.
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
        of_aiohttp.client = lambda: _open_guarded_session(of_aiohttp, reach, timeout_s)
    else:
        raise TypeError(
            f"Transports of type {type(transport).__name__} are not supported, because their connections cannot be checked."
        )


def _retry_on_broken_connection(transport: Any) -> None:
    """Make `transport` resend a request once if a kept-alive connection broke before the response began.

    Servers close old connections, and all connections when they restart, without reading the request. Before
    the request is sent again, the other idle connections are closed, because they are probably broken too.
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
    """Return whether an open connection broke, by the cause of `exc`, as aiohttp reports a connect timeout."""
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
        for each in idle:  # remove all before closing any, so that no other call gets one meanwhile
            pool._connections.remove(each)  # noqa: SLF001
        for each in idle:
            await each.aclose()
        return
    idle = transport.client.connector._conns  # noqa: SLF001
    for protocol, _ in [each for of_host in idle.values() for each in of_host]:
        protocol.close()
    idle.clear()


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Network backend of httpcore2 that connects only to addresses within `reach`."""

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
        """Connect to the first address of `host` that responds. Raise AddressForbidden if one is not in
        `reach`.
        """
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._reach.resolve(host)
        except TimeoutError as exc:  # before OSError, its base class
            raise httpcore2.ConnectTimeout(str(exc)) from exc
        except OSError as exc:
            raise httpcore2.ConnectError(str(exc)) from exc
        failure: Exception = httpcore2.ConnectError(f"The host {host} has no address.")
        for index, (_, address) in enumerate(addresses):
            share_s = None
            if timeout is not None:
                # An equal share of the remaining time, so that one silent address does not use it all.
                share_s = max(0.0, timeout - (time.monotonic() - began_s)) / (len(addresses) - index)
            try:
                return await self._inner.connect_tcp(address, port, share_s, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as exc:
                failure = exc
        raise failure

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class GuardedResolver(AbstractResolver):
    """Resolver of aiohttp that returns only addresses within `reach`. Its connect timeout does not include
    the lookup.
    """

    def __init__(self, reach: Reach, timeout_s: float | None) -> None:
        self._reach, self._timeout_s = reach, timeout_s

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Resolve `host`. Raise AddressForbidden for an address outside `reach`, or OSError without one."""
        try:
            async with asyncio.timeout(self._timeout_s):
                addresses = await self._reach.resolve(host)
        except TimeoutError as exc:
            raise OSError(errno.ETIMEDOUT, f"The DNS lookup of {host} timed out.") from exc
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=its_family,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for its_family, address in addresses
            if family in (socket.AF_UNSPEC, its_family)
        ]

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _open_guarded_session(transport: Any, reach: Reach, timeout_s: float | None) -> aiohttp.ClientSession:
    """Open a session with the transport's options that checks each socket, as no resolver is called for an IP
    address, such as a proxy's.
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
        use_dns_cache=False,  # `NAMES` caches for all clients together
        socket_factory=open_socket,
    )
    return aiohttp.ClientSession(connector=connector)
