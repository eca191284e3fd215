"""A conversation on OpenAI's chat wire."""

from collections.abc import Iterable

from conductor.model.messages import Image, Message, Text
from serving.workers.images import split_data_url
from serving.workers.openai_tools import assistant_json, pictures_of, results_json


def messages_json(messages: Iterable[Message], worker: str, account: str) -> list[dict[str, object]]:
    """The conversation; turns that `worker` wrote itself as they were, where they were written at `account`.

    Raises:
        ValueError: a picture that no server could read.
    """
    return [each for message in messages for each in _messages(message, worker, account)]


def _messages(message: Message, worker: str, account: str) -> list[dict[str, object]]:
    if message.role == "tool":
        shown = pictures_of(message)
        return [*results_json(message), *([_message(shown)] if shown else [])]
    if message.tool_calls:
        return [assistant_json(message, worker, account)]
    return [_message(message)]


def _message(message: Message) -> dict[str, object]:
    """Words as a plain string, which every server takes; parts only where the user shows a picture."""
    if not message.has_image or message.role != "user":
        return {"role": message.role, "content": message.text}
    parts = [_part(part) for part in message.parts if isinstance(part, Text | Image)]
    return {"role": message.role, "content": parts}


def _part(part: Text | Image) -> dict[str, object]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if part.url.startswith("data:"):
        split_data_url(part.url)  # to refuse here what the server would refuse later
    return {"type": "image_url", "image_url": {"url": part.url, "detail": part.detail}}
