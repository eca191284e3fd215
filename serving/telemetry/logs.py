"""Logs as JSON, one object a line, on standard output: what log shippers take as it is.

Knows how a line looks; what is in it comes with the call, as `extra={"fields": {...}}`. Ray Serve's own
lines are Serve's.
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
    """`time` (UTC), `level`, `message`, the call's fields, and the traceback of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(_redacted(line), ensure_ascii=False, default=str)


def _redacted(value: Any) -> Any:
    """`value` without a secret in any text of it."""
    match value:
        case str():
            return redact_secrets(value)
        case dict():
            named = {str(name): _redacted(each) for name, each in cast(dict[Any, Any], value).items()}
            return with_names(named, redact_secrets)
        case list() | tuple():
            return [_redacted(each) for each in cast(list[Any], value)]
        case bool() | int() | float() | None:
            return value
        case _:
            return redact_secrets(str(value))


def to_stdout() -> None:
    """Podium's lines on this process's standard output from now on, which Ray keeps in a file and shows the
    driver.
    """
    logger = logging.getLogger("podium")
    if logger.handlers:
        return
    # The process's own stream: Ray Serve wraps `sys.stdout` in a logger of its own that walks the stack at
    # every line.
    handler = logging.StreamHandler(sys.__stdout__)
    handler.setFormatter(JsonLines())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
