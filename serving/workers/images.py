"""Parsing of `data:` URLs (RFC 2397), for APIs that take media type and content separately."""

import base64
import binascii
import mimetypes
from urllib.parse import unquote_to_bytes, urlsplit

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
"""Standard media types of pictures, by other names that clients use for them. All providers accept the four
standard types.
"""
BEGINNINGS = {"/9j/": "image/jpeg", "iVBORw0KGgo": "image/png", "R0lGOD": "image/gif", "UklGR": "image/webp"}
"""Media types of pictures, by the beginning of their base64 text. Providers reject a picture with the wrong
media type.
"""


def plain_media_type(media_type: object) -> object:
    """Return the standard form of a media type: in lower case, without parameters, and with aliases replaced.

    A value that is not a string is returned unchanged.
    """
    if not isinstance(media_type, str):
        return media_type
    plain = media_type.partition(";")[0].strip().lower()
    return ALIASES.get(plain, plain)


def picture_url(url: str) -> str:
    """Return the URL of a picture in a form that every server accepts.

    Raises:
        ValueError: the URL is a malformed `data:` URL.
    """
    scheme, _, rest = url.partition(":")
    if scheme.lower() != "data":
        return f"{scheme.lower()}:{rest}"
    media_type, content = split_data_url(url)
    return f"data:{media_type};base64,{content}"


def split_data_url(url: str) -> tuple[str, str]:
    """Return the media type and the base64 text of a `data:` URL.

    Raises:
        ValueError: the URL is not a `data:` URL, or its base64 is invalid.
    """
    header, comma, content = url[len("data:") :].partition(",")
    if url[: len("data:")].lower() != "data:" or not comma:
        raise ValueError(
            "an image must be an https: URL, or a data: URL of the form data:<media type>;base64,<content>"
        )
    media_type, *flags = (each.strip().lower() for each in header.split(";"))
    media_type = ALIASES.get(media_type, media_type)
    if media_type.startswith("image/"):
        media_type = next(
            (real for begin, real in BEGINNINGS.items() if content.startswith(begin)), media_type
        )
    if "base64" not in flags:
        return media_type or "text/plain", base64.b64encode(unquote_to_bytes(content)).decode("ascii")
    try:
        base64.b64decode(content, validate=True)
    except binascii.Error as exc:
        raise ValueError("the data: URL of an image must contain valid base64") from exc
    return media_type or "text/plain", content


def media_type_of(url: str) -> str:
    """Return the media type for the file extension of a URL, or `image/jpeg` if it has none."""
    return mimetypes.guess_type(urlsplit(url).path)[0] or "image/jpeg"
