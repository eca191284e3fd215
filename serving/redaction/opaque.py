"""Encoded content in JSON, such as pictures and signatures, which is not searched for secrets.

Only fields that an API defines are exempt. Otherwise, a client could store a secret in an object that looks like encoded
content.
"""

from collections.abc import Mapping
from typing import Any

from serving.redaction.secrets import MEDIA_TYPE

_ITEMS, _BLOCKS, _DETAILS = ("", "input", "output"), ("", "content"), ("reasoning_details",)
OPAQUE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "base64": ("data", ("source",)),
    "compaction": ("encrypted_content", _ITEMS),
    "compaction_summary": ("encrypted_content", _ITEMS),
    "reasoning": ("encrypted_content", _ITEMS),
    "reasoning.encrypted": ("data", _DETAILS),
    "reasoning.text": ("signature", _DETAILS),
    "redacted_thinking": ("data", _BLOCKS),
    "thinking": ("signature", _BLOCKS),
}
"""Field with encoded content by the `type` of its JSON object, and the places of such objects (see `place_of`).

The content is a signature, an encrypted thought, a picture or a packed conversation. It is unusable if one character
changes, and by chance it may look like a secret."""
GEMINI_SIGNATURE, _GEMINI = "thought_signature", ("parts", "google")
"""Field with a signature in objects without a `type`, and the places of these objects."""
_OPAQUE_NAMES = {*(name for name, _ in OPAQUE.values()), GEMINI_SIGNATURE}
_PLACES = {*_ITEMS, *_BLOCKS, *_DETAILS, *_GEMINI, "source", "body", "response", "messages", "message", "choices", "tool_calls", "extra_content", "thoughts"}  # fmt: skip
"""Names of all fields that may contain such objects. Clients choose the content of other fields, such as metadata."""


def is_opaque_field(fields: Any, name: int | str, place: str | None) -> bool:
    """Return whether an API defines encoded content in the field `name` of a JSON object at `place`."""
    if name not in _OPAQUE_NAMES or place is None:
        return False
    if name == GEMINI_SIGNATURE:
        return place in _GEMINI
    kind, media_type = fields.get("type"), fields.get("media_type")
    field, places = OPAQUE.get(kind, ("", ())) if isinstance(kind, str) else ("", ())
    is_known = kind != "base64" or (isinstance(media_type, str) and MEDIA_TYPE.fullmatch(media_type))
    return name == field and place in places and bool(is_known)


def place_of(place: str | None, name: int | str, value: object) -> str | None:
    """Return the place of `value`, which is the item `name` of a JSON object or list at `place`.

    The place is the name of the nearest field around the value, or "" at the root. It is None if no API defines encoded
    content there, for example in the input of a tool.
    """
    if not isinstance(name, str) or place is None:
        return place
    return name if name in _PLACES and (name != "input" or isinstance(value, list)) else None
