"""Who may call: the `Host`, the `Origin` and the `Content-Type` of a request.

A web page cannot choose these headers freely, so they tell a browser that was sent here by a foreign page
(cross-site requests, DNS rebinding) from every other client. Clients that are no browser send no `Origin`.
"""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from conductor.errors import NotAllowed, WrongContentType, quote
from serving.edge.policy import Policy

Headers = Iterable[tuple[bytes, bytes]]
WITH_BODY = {"POST", "PUT", "PATCH"}
ANY = "*"


def check_host(headers: Headers, policy: Policy, server: str) -> None:
    """The request names a host that this is.

    Args:
        headers: of the request, names in lower case.
        policy: whose `hosts` are served beside the loopback's names.
        server: the address that the connection came in on.

    Raises:
        NotAllowed: a foreign name.
    """
    if policy.hosts is None and not is_loopback(server):
        return
    served = {*(policy.hosts or ()), server}
    for host in _values(headers, b"host"):
        name = _host_name(host)
        if not (is_loopback(name) or name in served or ANY in served):
            raise NotAllowed(
                f"The Host header names {quote(host)}, which is not served here. Add the name to `http.hosts` of the settings.",
                param="Host",
            )


def check_origin(headers: Headers, policy: Policy, server: str) -> str | None:
    """The request comes from no foreign web page; gives its origin where the settings name it.

    Raises:
        NotAllowed: a foreign origin.
    """
    headers = list(headers)
    hosts = _values(headers, b"host")
    for origin in _values(headers, b"origin"):
        if origin in policy.origins or ANY in policy.origins:
            return origin
        page = urlsplit(origin) if origin.count("://") == 1 else urlsplit("")
        if page.netloc and page.netloc in hosts:
            continue  # the same origin; what `hosts` may be was checked before
        if not (page.netloc and is_loopback(server) and is_loopback(_host_name(page.netloc))):
            raise NotAllowed(
                f"Web pages of {quote(origin)} may not call this server. Add the origin to `http.origins` of the settings.",
                param="Origin",
            )
    return None


def check_content_type(method: str, headers: Headers, *, is_upload: bool = False) -> None:
    """A body is JSON: what a form, or a page without a preflight, can send is not. An upload is a form; a foreign
    page cannot send one here, because `check_origin` came first. Where there is no body, such as of a cancel, its
    type is nobody's business.

    Raises:
        WrongContentType: it says that it is something else, or nothing.
    """
    if method not in WITH_BODY or not has_body(headers):
        return
    given = _values(headers, b"content-type")
    wanted = "multipart/form-data" if is_upload else "application/json"
    if [value.split(";")[0].strip().lower() for value in given] != [wanted]:
        said = quote(given[0]) if given else "missing"
        raise WrongContentType(
            f"The Content-Type header is {said}. Send `Content-Type: {wanted}`.", param="Content-Type"
        )


def asks_for_websocket(headers: Headers) -> bool:
    """Return whether the request is a WebSocket's handshake."""
    return "websocket" in [value.lower() for value in _values(headers, b"upgrade")]


def has_body(headers: Headers) -> bool:
    """Return whether the request has a body, by its length or its framing (RFC 9112, section 6.3)."""
    lengths = {*_values(headers, b"content-length")}
    return bool(lengths - {"0"} or _values(headers, b"transfer-encoding"))


def _values(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for key, value in headers if key == name]


def _host_name(host: str) -> str:
    """Without the port; an IPv6 address without its brackets."""
    if host.startswith("["):
        address, _, port = host[1:].partition("]")
        return address.lower() if not port or (port[0] == ":" and port[1:].isdigit()) else host
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).rstrip(".").lower()


@lru_cache(maxsize=256)
def is_loopback(name: str) -> bool:
    """Whether a host's name or address is this machine's loopback."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
