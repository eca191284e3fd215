"""Logs as JSON lines on standard output, ready for log shippers.

This module defines only the format of a line. Callers pass further fields as `extra={"fields": {...}}`. Ray
Serve formats its own log lines.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, cast

from serving.redaction.secrets import redact_secrets
from serving.redaction.texts import with_names

FIELDS = "fields"


class JsonLines(logging.Formatter):
    """Formatter that writes a record as JSON: `time` (UTC), `level`, `message`, the caller's fields and any
    `exception`, without secrets.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(_redact(line), ensure_ascii=False, default=str)


def _redact(value: Any) -> Any:
    """Return `value` with the secrets in all its texts redacted."""
    match value:
        case str():
            return redact_secrets(value)
        case dict():
            named = {str(name): _redact(each) for name, each in cast(dict[Any, Any], value).items()}
            return with_names(named, redact_secrets)
        case list() | tuple():
            return [_redact(each) for each in cast(list[Any], value)]
        case bool() | int() | float() | None:
            return value
        case _:
            return redact_secrets(str(value))


def to_stdout() -> None:
    """Send Podium's log lines to standard output, which Ray writes to a file and forwards to the driver."""
    logger = logging.getLogger("podium")
    if logger.handlers:
        return
    # `sys.__stdout__`, because Ray Serve replaces `sys.stdout` by a logger that inspects the stack for every line.
    handler = logging.StreamHandler(sys.__stdout__)
    handler.setFormatter(JsonLines())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
