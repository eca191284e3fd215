"""Which addresses a vLLM engine may fetch pictures from.

vLLM fetches what a caller's address names, from inside the network that the engine is in: loopback, cloud
metadata and neighbours included. So nothing is fetched unless the settings name its host; a picture comes
in the request, as a `data:` address.
"""

from collections.abc import Collection
from urllib.parse import urlsplit

from conductor.errors import WorkerRefused
from serving.workers.vllm import EngineCall


def check_media(call: EngineCall, hosts: Collection[str]) -> None:
    """Look at every picture's address before vLLM does.

    Args:
        call: the conversation in OpenAI's form.
        hosts: the names of hosts that may be asked.

    Raises:
        WorkerRefused: an address is neither `data:` nor `http(s):` at one of `hosts`.
    """
    for url in _addresses(call):
        if url[:5].lower() != "data:" and not _is_at(url, hosts):
            raise WorkerRefused(
                "This model fetches no pictures from that address. Send the picture itself, as data:image/...;base64,..., "
                "or let the operator name its host in `engine.allowed_media_domains`."
            )


def _addresses(call: EngineCall) -> list[str]:
    contents = [message["content"] for message in call.messages]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    return [part["image_url"]["url"] for part in parts if "image_url" in part]


def _is_at(url: str, hosts: Collection[str]) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and parts.hostname in hosts
    except ValueError:
        return False
