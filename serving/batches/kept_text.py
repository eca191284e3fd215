"""Redaction of files before they are stored. Secrets are removed, and personal data if a policy requires it.

`serving/store/content.py` does the same for runs. A function whose name ends in `_in_steps` is a generator
that does the same work in short steps, so that a large file does not block the event loop.
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
from serving.redaction.slices import Steps
from serving.redaction.texts import Repack, json_in_steps, steps_of

ID = "custom_id"


def redactor_of(policies: Policies, most_checked: int = MOST_CHECKED) -> Redactor:
    """Return the redactor that the policies require. Use it for one request or file only."""
    return PersonalDataRedactor(most_checked) if policies.both.redact_personal_data else redact_secrets


@dataclass(frozen=True, slots=True)
class LineLimits:
    """Limits of a file of requests. Each line is a request, so the limits of a request's body apply to it."""

    max_lines: int
    max_line_bytes: int
    max_text_bytes: int

    def check(self, number: int, line: bytes) -> None:
        """Check the size of the text in a line, numbered from 1. Raise TooLarge if it exceeds the limit."""
        try:
            check_text(line, self.max_text_bytes)
        except TooLarge:
            raise _too_large(
                number, "the text of line", self.max_text_bytes, "limits.max_text_bytes"
            ) from None

    def check_bytes(self, number: int, n_bytes: int) -> None:
        """Check the number, from 1, and the size of a line. Raise TooLarge if one exceeds its limit."""
        if n_bytes > self.max_line_bytes:
            raise _too_large(number, "line", self.max_line_bytes, "limits.max_body_bytes")
        if number > self.max_lines:
            raise TooLarge(
                f"file: line {number} is above the limit of {self.max_lines} lines per file, including empty lines "
                "(batches.max_lines). Split the file.",
                param="file",
            )


def kept_in_steps(
    content: bytes, redact: Redactor, limits: LineLimits | None = None, repack: Repack | None = None
) -> Steps[bytes]:
    """Redact the lines of a JSONL file in steps, and check them against `limits`. Unredacted lines keep their
    bytes. For `repack`, see `json_in_steps`.
    """
    pieces, done, ids = list[bytes](), 0, dict[str, dict[str, int]]()
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
        new_line = yield from _kept_line(line, redact, ids, repack)
        if new_line is not line:
            pieces += content[done:begin], new_line
            done = end
    whole = b"".join([*pieces, content[done:]]) if pieces else content
    return whole if not whole or whole.endswith(b"\n") else whole + b"\n"


def _kept_line(
    line: bytes, redact: Redactor, ids: dict[str, dict[str, int]], repack: Repack | None
) -> Steps[bytes]:
    """Redact a line. Return the same object if nothing was redacted.

    Two different values of `custom_id` can be equal after redaction. A number is then appended to the second
    one.
    """
    try:
        parsed = orjson.loads(line)
        id = cast(dict[str, Any], parsed).get(ID) if isinstance(parsed, dict) else None
        value, has_changed = yield from json_in_steps(parsed, redact, repack)
        if isinstance(id, str) and value[ID] != id:
            numbers = ids.setdefault(value[ID], {})
            number = numbers.setdefault(id, len(numbers) + 1)
            value[ID] += f" {number}" if number > 1 else ""
        return orjson.dumps(value) if has_changed else line
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # not JSON, or nested too deeply to be written
        text = line.decode("utf-8", "replace")
        new_text = yield from steps_of(redact, text)
        return line if new_text == text else new_text.encode()


def _too_large(number: int, what: str, most: int, setting: str) -> TooLarge:
    return TooLarge(
        f"file: {what} {number} is longer than {most} bytes, the limit for a request ({setting}). Shorten this line.",
        param="file",
    )


def kept_content(content: bytes, redact: Redactor, most: int) -> Steps[bytes]:
    """Redact a text file of at most `most` bytes in steps. Return PDFs and other binary files unchanged."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return content
    if content.startswith(b"%PDF-"):
        return content
    if len(content) > most:
        raise TooLarge(
            f"file: a text file may have at most {most} bytes (limits.max_text_bytes). Split it.",
            param="file",
        )
    new_text = yield from steps_of(redact, text)
    return content if new_text is text else new_text.encode()
