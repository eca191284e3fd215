"""What is kept of a file's texts: all but secrets and, where a policy says so, personal data; as of runs' texts
(`serving/runs/content.py`).
"""

from typing import Any, cast

import orjson

from conductor.errors import TooLarge
from serving.accounts.account_policy import Policies
from serving.batches.lines import json_lines
from serving.redaction.personal import MOST_CHECKED, PersonalDataRedactor
from serving.redaction.secrets import Redactor, redact_secrets


def redactor_of(policies: Policies, most_checked: int = MOST_CHECKED) -> Redactor:
    """What takes out of the texts of one request or file what may not be kept of them."""
    return PersonalDataRedactor(most_checked) if policies.both.redact_personal_data else redact_secrets


def kept_lines(content: bytes, redact: Redactor) -> bytes:
    """JSON lines as they may be kept; lines that need no change as they stand."""
    kept: list[bytes] = []
    for text, value in json_lines(content):
        changed = _redact(value, redact)
        if changed == value:
            kept.append(text)
        else:
            kept.append(changed.encode() if isinstance(changed, str) else orjson.dumps(changed))
    return b"".join(line + b"\n" for line in kept)


def kept_content(content: bytes, redact: Redactor, most: int) -> bytes:
    """A file as it may be kept: what is text without what must go, anything else as it stands.

    Raises:
        TooLarge: it is a text of more than `most` bytes, which no request can name. To look for secrets in one text
            stops all else in this process.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return content
    if content.startswith(b"%PDF-"):
        return content
    if len(content) > most:
        raise TooLarge(
            f"file: a text that requests name has {most} bytes at most. Send several.", param="file"
        )
    return redact(text).encode()


def _redact(value: Any, redact: Redactor) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_redact(each, redact) for each in cast(list[Any], value)]
    if isinstance(value, dict):
        return {name: _redact(each, redact) for name, each in cast(dict[str, Any], value).items()}
    return value
