"""What a `data:` address holds, for the wires that want bytes and media type apart (RFC 2397)."""

import base64
import binascii
import mimetypes
from urllib.parse import unquote_to_bytes, urlsplit


def split_data_url(url: str) -> tuple[str, str]:
    """Media type and base64 text of a `data:` address.

    Raises:
        ValueError: it is not one, or what it says to be base64 is not.
    """
    header, comma, content = url.removeprefix("data:").partition(",")
    if not url.startswith("data:") or not comma:
        raise ValueError("an image is given as an https: address or as data:<media type>;base64,<content>")
    media_type, *flags = header.split(";")
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
