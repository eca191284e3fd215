"""Which servers may be given the address of a picture.

Whoever gets an address fetches it from where it stands. A provider stands on the internet and finds there
what anybody finds. A server inside one's own network (Ollama, one's own vLLM) would fetch what a caller
names from its neighbours and from the cloud's metadata service, and describe it.
"""

import asyncio

from conductor.model.call import Call
from conductor.model.messages import Image
from serving.egress.reach import REQUESTS, AddressForbidden
from serving.workers.http_errors import ErrorMapper

INLINE = "data:"
LOOK_UP_S = 5.0
"""A server whose name takes longer is not known to stand anywhere."""


async def check_pictures(call: Call, host: str, fetches: bool | None, faults: ErrorMapper) -> None:
    """Let a call pass whose pictures are in it, or whose server may fetch them.

    Args:
        call: what is about to be sent.
        host: of the server.
        fetches: what the settings say; None: where it stands decides.
        faults: makes the error.

    Raises:
        WorkerRefused: the server would fetch a picture from inside this network.
    """
    parts = (part for message in call.messages for part in message.all_parts)
    if all(not isinstance(part, Image) or part.url.startswith(INLINE) for part in parts):
        return
    if not await may_fetch(host, fetches):
        raise faults.refusal(
            "was not asked: it fetches no pictures. Send the picture itself, as data:image/...;base64,....",
            f"{host} is not known to be at public addresses, so it would fetch what callers name from inside a network. "
            "If it may, set `fetches_pictures: true`.",
        )


async def may_fetch(host: str, fetches: bool | None) -> bool:
    """Whether the server at `host` may be given the address of a picture. `fetches`: see `check_pictures`."""
    return await _is_public(host) if fetches is None else fetches


async def _is_public(host: str) -> bool:
    try:
        async with asyncio.timeout(LOOK_UP_S):
            await REQUESTS.resolve(host.strip("[]"))
    except (AddressForbidden, OSError):  # a timeout is an OSError
        return False
    return True
