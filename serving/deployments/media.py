"""Fetch the pictures that a call to a vLLM engine links to, from hosts that the settings allow.

vLLM would fetch any URL that a client sends from inside the engine's network, including addresses of the
machine itself, of cloud metadata services and of neighbouring servers (server-side request forgery).

Podium therefore fetches the pictures itself and passes their content to vLLM. It fetches only from allowed
hosts, with a client that checks the address when it connects. All other pictures must be in the request, as
`data:` URLs.
"""

import asyncio
import base64
import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import httpx2

from conductor.errors import WorkerRefused
from serving.egress.client import open_client
from serving.egress.reach import AddressForbidden, reach_of_hosts
from serving.workers.vllm import EngineCall

MAX_BYTES = 20_000_000
"""Maximum size of all fetched pictures of a call together. Equal to the default of `limits.max_body_bytes`.
"""
TIMEOUT_S = 20.0
"""Maximum seconds for fetching all pictures of a call."""
INLINE = "data:"
PICTURE = re.compile(r"image/[a-z0-9.+-]{1,40}")
"""Accepted media types."""


async def inline_pictures(call: EngineCall, hosts: Collection[str]) -> EngineCall:
    """Return the call with every linked picture replaced by its content, or raise WorkerRefused.

    `hosts` are compared exactly. A name may resolve only to public addresses, an IP address may be of any
    kind.
    """
    addresses = [part["image_url"]["url"] for part in _pictures(call)]
    links = list(dict.fromkeys(url for url in addresses if url[:5].lower() != INLINE))
    for url in links:
        _check_address(url, hosts)
    if not links:
        return call
    fetched: dict[str, str] = {}
    try:
        async with asyncio.timeout(TIMEOUT_S), open_client(reach_of_hosts(hosts), TIMEOUT_S) as client:
            room = MAX_BYTES
            for url in links:
                kind, content = await _fetch(client, url, room)
                room -= len(content)
                fetched[url] = f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
    except (AddressForbidden, httpx2.HTTPError, OSError) as exc:  # a TimeoutError is an OSError
        raise _refusal(f"{type(exc).__name__}: {exc}") from exc
    return replace(call, messages=[_with_pictures(message, fetched) for message in call.messages])


def _pictures(call: EngineCall) -> list[dict[str, Any]]:
    contents = [message["content"] for message in call.messages]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    return [part for part in parts if "image_url" in part]


def _check_address(url: str, hosts: Collection[str]) -> None:
    try:
        parts = httpx2.URL(url)
        is_allowed = parts.scheme in ("http", "https") and parts.host in hosts and not parts.userinfo
    except (httpx2.InvalidURL, TypeError):
        is_allowed = False
    if not is_allowed:
        raise WorkerRefused(
            "This model does not fetch images from that URL. "
            "Send the image as data:<media type>;base64,<content>, or ask the operator to add "
            "the host to `engine.allowed_media_domains`."
        )


async def _fetch(client: httpx2.AsyncClient, url: str, room: int) -> tuple[str, bytes]:
    """Return media type and bytes of the picture at `url`. Raise WorkerRefused for others, or beyond `room`."""
    async with client.stream("GET", url, headers={"accept-encoding": "identity"}) as response:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code != int(httpx2.codes.OK) or not PICTURE.fullmatch(kind):
            raise _refusal(f"The server returned no image (status {response.status_code}).")
        content = bytearray()
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > room:
                raise _refusal(f"The images of a call must have at most {MAX_BYTES} bytes in total.")
    return kind, bytes(content)


def _refusal(detail: str) -> WorkerRefused:
    """Return the error for a picture that cannot be fetched.

    The message is the same for every cause, so that a client cannot find out which addresses answer.
    """
    return WorkerRefused(
        "An image cannot be fetched from its URL. Send the image as data:<media type>;base64,<content>.",
        detail=detail,
    )


def _with_pictures(message: dict[str, Any], fetched: dict[str, str]) -> dict[str, Any]:
    if isinstance(message["content"], str):
        return message
    return message | {"content": [_with_picture(part, fetched) for part in message["content"]]}


def _with_picture(part: dict[str, Any], fetched: dict[str, str]) -> dict[str, Any]:
    url = part.get("image_url", {}).get("url")
    return part | {"image_url": part["image_url"] | {"url": fetched[url]}} if url in fetched else part
