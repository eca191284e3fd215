"""Pictures that a vLLM engine is shown by their address: fetched here, from hosts that the settings name.

vLLM would fetch what a caller's address names from inside the network that the engine is in: loopback, cloud
metadata and neighbours included. So nothing is fetched unless the settings name its host, and then by our
guarded client, at the moment of connecting; vLLM gets the picture itself. Otherwise a picture comes in the
request, as a `data:` address.
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
"""Of all pictures of a call; as a whole request may have (`limits.max_body_bytes`)."""
WITHIN_S = 20.0
"""For all of them."""
INLINE = "data:"
PICTURE = re.compile(r"image/[a-z0-9.+-]{1,40}")
"""The media types that are let in."""


async def inline_pictures(call: EngineCall, hosts: Collection[str]) -> EngineCall:
    """The call with every picture in it.

    Args:
        call: the conversation in OpenAI's form.
        hosts: the hosts that may be asked, letter by letter. A name leads to public addresses only; an
            address named itself may be any.

    Raises:
        WorkerRefused: an address is neither `data:` nor `http(s):` at one of `hosts`, or cannot be had.
    """
    addresses = [part["image_url"]["url"] for part in _pictures(call)]
    wanted = list(dict.fromkeys(url for url in addresses if url[:5].lower() != INLINE))
    for url in wanted:
        _check_address(url, hosts)
    if not wanted:
        return call
    fetched: dict[str, str] = {}
    try:
        async with asyncio.timeout(WITHIN_S), open_client(reach_of_hosts(hosts), WITHIN_S) as client:
            room = MAX_BYTES
            for url in wanted:
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
        named = parts.scheme in ("http", "https") and parts.host in hosts and not parts.userinfo
    except (httpx2.InvalidURL, TypeError):
        named = False
    if not named:
        raise WorkerRefused(
            "This model fetches no pictures from that address. Send the picture itself, as data:image/...;base64,..., "
            "or let the operator name its host in `engine.allowed_media_domains`."
        )


async def _fetch(client: httpx2.AsyncClient, url: str, room: int) -> tuple[str, bytes]:
    """The media type and the bytes of the picture at `url`.

    Raises:
        WorkerRefused: it is not there, no picture, or longer than `room`.
        AddressForbidden, httpx2.HTTPError, OSError: it cannot be reached.
    """
    async with client.stream("GET", url, headers={"accept-encoding": "identity"}) as response:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code != int(httpx2.codes.OK) or not PICTURE.fullmatch(kind):
            raise _refusal(f"Its server answered {response.status_code}, and no picture.")
        content = bytearray()
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > room:
                raise _refusal(f"The pictures have more than {MAX_BYTES} bytes.")
    return kind, bytes(content)


def _refusal(detail: str) -> WorkerRefused:
    """One message for all of it: what is at an address is not said to who named it."""
    return WorkerRefused(
        "A picture of the request cannot be had from its address. Send the picture itself, as data:image/...;base64,....",
        detail=detail,
    )


def _with_pictures(message: dict[str, Any], fetched: dict[str, str]) -> dict[str, Any]:
    if isinstance(message["content"], str):
        return message
    return message | {"content": [_with_picture(part, fetched) for part in message["content"]]}


def _with_picture(part: dict[str, Any], fetched: dict[str, str]) -> dict[str, Any]:
    url = part.get("image_url", {}).get("url")
    return part | {"image_url": part["image_url"] | {"url": fetched[url]}} if url in fetched else part
