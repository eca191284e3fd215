"""Places of encoded content in JSON: where the protocols define it. Only there, it is not searched for secrets.

Elsewhere, a client could store a secret in an object that only looks like encoded content.
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
"""JSON fields with encoded content, and the places of their objects (see `place_of`), by the `type` of the object: signatures,
encrypted thoughts, pictures and packed conversations. They are lost if one character changes, and may contain by chance
what looks like a secret."""
GEMINI_SIGNATURE, _GEMINI = "thought_signature", ("parts", "google")
"""A field of the same kind in objects without a `type`, and their places."""
_OPAQUE_NAMES = {*(name for name, _ in OPAQUE.values()), GEMINI_SIGNATURE}
_PLACES = {*_ITEMS, *_BLOCKS, *_DETAILS, *_GEMINI, "source", "body", "response", "messages", "message", "choices", "tool_calls", "extra_content", "thoughts"}  # fmt: skip
"""Names of the fields on the way to encoded content. Other fields contain what a client chooses, such as metadata."""


def is_opaque_field(fields: Any, name: int | str, place: str | None) -> bool:
    """Return whether the field `name` of a JSON object at `place` may have encoded content, which is not searched."""
    if name not in _OPAQUE_NAMES or place is None:
        return False
    if name == GEMINI_SIGNATURE:
        return place in _GEMINI
    kind, media_type = fields.get("type"), fields.get("media_type")
    field, places = OPAQUE.get(kind, ("", ())) if isinstance(kind, str) else ("", ())
    is_known = kind != "base64" or (isinstance(media_type, str) and MEDIA_TYPE.fullmatch(media_type))
    return name == field and place in places and bool(is_known)


def place_of(place: str | None, name: int | str, value: object) -> str | None:
    """Return the place of the JSON `value` in a container at `place`: the name of the field that contains it, maybe in a
    list. "" is the root. None is a place where no protocol defines encoded content, such as a tool's input.
    """
    if not isinstance(name, str) or place is None:
        return place
    return name if name in _PLACES and (name != "input" or isinstance(value, list)) else None
