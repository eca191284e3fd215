"""What is kept of a file's texts: all but secrets and, where a policy says so, personal data; as of runs' texts
(`serving/runs/content.py`).
"""

from dataclasses import dataclass
from typing import Any, cast

import orjson

from conductor.errors import TooLarge
from serving.accounts.account_policy import Policies
from serving.batches.lines import STEP_BYTES, STEP_LINES, each_line
from serving.edge.checks import check_text
from serving.redaction.personal import MOST_CHECKED, PersonalDataRedactor
from serving.redaction.secrets import Redactor, redact_secrets
from serving.redaction.slices import Steps, finish
from serving.redaction.texts import json_in_steps, steps_of

ID = "custom_id"


def redactor_of(policies: Policies, most_checked: int = MOST_CHECKED) -> Redactor:
    """What takes out of the texts of one request or file what may not be kept of them."""
    return PersonalDataRedactor(most_checked) if policies.both.redact_personal_data else redact_secrets


@dataclass(frozen=True, slots=True)
class LineLimits:
    """What a file of requests may hold. A line is a request, so the limits of a request's body hold for it.

    Args:
        max_lines: empty ones included; see `batches.max_lines`.
        max_line_bytes: see `limits.max_body_bytes`.
        max_text_bytes: of a line, pictures aside; see `limits.max_text_bytes`.
    """

    max_lines: int
    max_line_bytes: int
    max_text_bytes: int

    def check(self, number: int, line: bytes) -> None:
        """Raises:
        TooLarge: the line of that number, from 1, has more text than a request may.
        """
        try:
            check_text(line, self.max_text_bytes)
        except TooLarge:
            raise _too_large(
                number, "text of the line", self.max_text_bytes, "limits.max_text_bytes"
            ) from None

    def check_bytes(self, number: int, n_bytes: int) -> None:
        """Raises:
        TooLarge: there may be no line of that number, from 1, or none of so many bytes.
        """
        if n_bytes > self.max_line_bytes:
            raise _too_large(number, "line", self.max_line_bytes, "limits.max_body_bytes")
        if number > self.max_lines:
            raise TooLarge(
                f"file: line {number} is one too many. A file has {self.max_lines} lines at most, empty ones included "
                "(batches.max_lines). Send several files.",
                param="file",
            )


def kept_lines(content: bytes, redact: Redactor) -> bytes:
    """JSON lines as they may be kept; lines that need no change as they stand."""
    return finish(kept_in_steps(content, redact))


def kept_in_steps(content: bytes, redact: Redactor, limits: LineLimits | None = None) -> Steps[bytes]:
    """As `kept_lines`, in steps.

    Raises:
        TooLarge: there are more or longer lines than `limits` says.
    """
    kept, done, ids = list[bytes](), 0, dict[str, dict[str, int]]()
    for number, (begin, end) in enumerate(each_line(content), 1):
        if number % STEP_LINES == 0:
            yield
        if limits is not None:
            limits.check_bytes(number, end - begin)
        if end == begin:
            continue
        line = content[begin:end]
        if limits is not None:
            limits.check(number, line)
        if len(line) > STEP_BYTES:
            yield
        changed = yield from _kept_line(line, redact, ids)
        if changed is not line:
            kept += content[done:begin], changed
            done = end
    whole = b"".join([*kept, content[done:]]) if kept else content
    return whole if not whole or whole.endswith(b"\n") else whole + b"\n"


def _kept_line(line: bytes, redact: Redactor, ids: dict[str, dict[str, int]]) -> Steps[bytes]:
    """Return a line as it may be kept, or itself if it needs no change.

    Args:
        line: one of a file's.
        redact: what takes out of its texts what may not be kept.
        ids: for each `custom_id` that is kept instead of others, these with their numbers. Different ones stay different.
    """
    try:
        sent = orjson.loads(line)
        id = cast(dict[str, Any], sent).get(ID) if isinstance(sent, dict) else None
        value, has_changed = yield from json_in_steps(sent, redact)
        if isinstance(id, str) and value[ID] != id:
            numbers = ids.setdefault(value[ID], {})
            number = numbers.setdefault(id, len(numbers) + 1)
            value[ID] += f" {number}" if number > 1 else ""
        return orjson.dumps(value) if has_changed else line
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # no JSON, or deeper than it is written
        text = line.decode("utf-8", "replace")
        changed = yield from steps_of(redact, text)
        return line if changed == text else changed.encode()


def _too_large(number: int, what: str, most: int, setting: str) -> TooLarge:
    return TooLarge(
        f"file: the {what} {number} is longer than {most} bytes, as a request's may not be ({setting}).",
        param="file",
    )


def kept_content(content: bytes, redact: Redactor, most: int) -> Steps[bytes]:
    """A file as it may be kept: what is text without what must go, anything else as it stands.

    Raises:
        TooLarge: it is a text of more than `most` bytes, which no request can name.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return content
    if content.startswith(b"%PDF-"):
        return content
    if len(content) > most:
        raise TooLarge(
            f"file: a text that requests name has {most} bytes at most (limits.max_text_bytes). Send several.",
            param="file",
        )
    changed = yield from steps_of(redact, text)
    return content if changed is text else changed.encode()
