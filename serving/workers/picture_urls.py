"""URLs of pictures and files: parsing of `data:` URLs (RFC 2397), and the check whether a server may fetch other
URLs, which prevents server-side request forgery.

A provider on the internet can reach only public addresses. But a server in a private network (Ollama, vLLM)
could fetch a URL of a neighbouring server or of the cloud's metadata service, and describe the content to the
caller.
"""

import asyncio
import base64
import mimetypes
import string
from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import unquote_to_bytes, urlsplit

from conductor.model.call import Call
from conductor.model.messages import Image
from serving.egress.reach import REQUESTS, AddressForbidden
from serving.workers.http_errors import ErrorMapper

ALIASES = {
    "image/jpg": "image/jpeg",
    "image/jpe": "image/jpeg",
    "image/jfif": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/pjp": "image/jpeg",
    "image/x-jpeg": "image/jpeg",
    "image/x-jpg": "image/jpeg",
    "image/x-citrix-jpeg": "image/jpeg",
    "image/apng": "image/png",
    "image/x-png": "image/png",
    "image/x-citrix-png": "image/png",
    "image/x-gif": "image/gif",
    "image/x-webp": "image/webp",
}
"""Standard media types by their aliases. All providers accept the four standard types."""
INLINE = "data:"
BASE64 = (string.ascii_letters + string.digits + "+/").encode()
BEGINNINGS = {"/9j/": "image/jpeg", "iVBORw0KGgo": "image/png", "R0lGOD": "image/gif", "UklGR": "image/webp"}
"""Media types by the beginning of base64 text. Providers reject pictures with a wrong one."""


def plain_media_type(media_type: object) -> object:
    """Return a media type in lower case without parameters and aliases, or a value that is no string."""
    if not isinstance(media_type, str):
        return media_type
    plain = media_type.partition(";")[0].strip().lower()
    return ALIASES.get(plain, plain)


def picture_url(url: str) -> str:
    """Return the URL of a picture in a form that every server accepts, or raise ValueError."""
    if url[: len(INLINE)].lower() == INLINE:
        media_type, content = split_data_url(url)
        return f"{INLINE}{media_type};base64,{content}"
    scheme, _, rest = url.partition(":")
    return f"{scheme.lower()}:{rest}"


def inline_url(media_type: str, content: str) -> str:
    """Return the `data:` URL of a picture in base64, or raise ValueError."""
    return f"{INLINE}{_check_content(media_type, content)};base64,{content}"


def split_data_url(url: str) -> tuple[str, str]:
    """Return media type and base64 text of a `data:` URL, or raise ValueError."""
    comma = url.find(",")
    if url[: len(INLINE)].lower() != INLINE or comma < 0:
        raise ValueError(
            "an image must be an https: URL, or a data: URL of the form data:<media type>;base64,<content>"
        )
    media_type, *flags = (each.strip().lower() for each in url[len(INLINE) : comma].split(";"))
    content = url[comma + 1 :]
    if "base64" not in flags:
        content = base64.b64encode(unquote_to_bytes(content)).decode("ascii")
    return _check_content(media_type, content) or "text/plain", content


def _check_content(media_type: str, content: str) -> str:
    """Return the media type of a content in base64, or raise ValueError. Decoding it would take six times as long."""
    is_base64 = False
    if len(content) % 4 == 0 and content.isascii():
        data = content.encode()
        padding = data.translate(None, BASE64)
        is_base64 = padding in (b"", b"=", b"==") and data.endswith(padding)
    if not is_base64:
        raise ValueError("the data: URL of an image must contain valid base64")
    media_type = ALIASES.get(media_type, media_type)
    if not media_type.startswith("image/"):
        return media_type
    return next((real for begin, real in BEGINNINGS.items() if content.startswith(begin)), media_type)


def media_type_of(url: str) -> str:
    """Return the media type for the file extension of a URL, or `image/jpeg` if it has none."""
    return mimetypes.guess_type(urlsplit(url).path)[0] or "image/jpeg"


LOOK_UP_S = 5.0
"""Maximum seconds for the DNS lookups of one request. A server whose lookup takes longer does not count as
public."""
LOOK_UPS = 16
"""Maximum number of concurrent lookups for one request."""


async def check_pictures(call: Call, host: str, fetches: bool | None, faults: ErrorMapper) -> None:
    """Check that pictures are inline, or that the server at `host` may fetch them, not from inside this
    network. Without the setting `fetches`, only servers at public addresses may.
    """
    parts = (part for message in call.messages for part in message.all_parts)
    if all(not isinstance(part, Image) or part.url.startswith(INLINE) for part in parts):
        return
    if not await may_fetch(host, fetches):
        raise faults.refusal(
            f"{faults.worker} does not fetch images by URL. Send the image as data:<media type>;base64,<content>.",
            f"{host} has no known public address, so it could fetch private URLs from requests. "
            "To allow this, set `fetches_pictures: true`.",
        )


async def may_fetch(host: str, fetches: bool | None) -> bool:
    """Return whether the server at `host` may fetch pictures by URL. See `check_pictures`."""
    return bool(await public_hosts([host])) if fetches is None else fetches


async def public_hosts(hosts: Iterable[str], within_s: float = LOOK_UP_S) -> frozenset[str]:
    """Return the hosts that have public addresses only, of those that are looked up `within_s`."""
    public, free = set[str](), asyncio.Semaphore(LOOK_UPS)

    async def look_up(host: str) -> None:
        with suppress(AddressForbidden, OSError):
            async with free:
                await REQUESTS.resolve(host.strip("[]"))
            public.add(host)

    with suppress(TimeoutError):
        async with asyncio.timeout(within_s), asyncio.TaskGroup() as lookups:
            for host in set(hosts):
                lookups.create_task(look_up(host), name=f"lookup of {host}")
    return frozenset(public)
