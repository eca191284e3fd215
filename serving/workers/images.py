"""What a `data:` address holds, for the wires that want bytes and media type apart (RFC 2397)."""

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
"""Names that are in use for the four formats that every provider takes, by the one that providers know."""
BEGINNINGS = {"/9j/": "image/jpeg", "iVBORw0KGgo": "image/png", "R0lGOD": "image/gif", "UklGR": "image/webp"}
"""Of these formats in base64. A provider looks at it, and refuses a picture that says that it is another."""


def plain_media_type(given: object) -> object:
    """Return a media type as providers know it: lower case, without parameters, no alias. Anything else as it is."""
    if not isinstance(given, str):
        return given
    plain = given.partition(";")[0].strip().lower()
    return ALIASES.get(plain, plain)


def picture_url(url: str) -> str:
    """Return the address of a picture as every server reads it.

    Raises:
        ValueError: it is a `data:` address that cannot be read.
    """
    scheme, _, rest = url.partition(":")
    if scheme.lower() != "data":
        return f"{scheme.lower()}:{rest}"
    media_type, content = split_data_url(url)
    return f"data:{media_type};base64,{content}"


def split_data_url(url: str) -> tuple[str, str]:
    """Media type and base64 text of a `data:` address.

    Raises:
        ValueError: it is not one, or what it says to be base64 is not.
    """
    header, comma, content = url[len("data:") :].partition(",")
    if url[: len("data:")].lower() != "data:" or not comma:
        raise ValueError("an image is given as an https: address or as data:<media type>;base64,<content>")
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
        raise ValueError("an image's data: address says base64, and its content is not base64") from exc
    return media_type or "text/plain", content


def media_type_of(url: str) -> str:
    """The media type that the ending of an address suggests; `image/jpeg` where it suggests none."""
    return mimetypes.guess_type(urlsplit(url).path)[0] or "image/jpeg"
