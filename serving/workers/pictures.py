"""Check whether a server may fetch pictures by URL, to prevent server-side request forgery.

A provider on the internet can reach only public addresses. But a server in a private network (Ollama, vLLM)
could fetch a URL of a neighbouring server or of the cloud's metadata service, and describe the content to the
caller.
"""

import asyncio

from conductor.model.call import Call
from conductor.model.messages import Image
from serving.egress.reach import REQUESTS, AddressForbidden
from serving.workers.http_errors import ErrorMapper

INLINE = "data:"
LOOK_UP_S = 5.0
"""Maximum seconds for a DNS lookup. A server whose lookup takes longer does not count as public."""


async def check_pictures(call: Call, host: str, fetches: bool | None, faults: ErrorMapper) -> None:
    """Check that the call's pictures are inline, or that the server may fetch them.

    Args:
        call: call to send.
        host: host name or IP address of the server.
        fetches: value of the setting `fetches_pictures`. If it is None, only servers at public addresses may
            fetch pictures.
        faults: error mapper of the worker.

    Raises:
        WorkerRefused: the server would fetch a picture from inside this network.
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
    """Return whether the server at `host` may fetch pictures by URL.

    See `check_pictures` for `fetches`.
    """
    return await _is_public(host) if fetches is None else fetches


async def _is_public(host: str) -> bool:
    try:
        async with asyncio.timeout(LOOK_UP_S):
            await REQUESTS.resolve(host.strip("[]"))
    except (AddressForbidden, OSError):  # a timeout is an OSError
        return False
    return True
