"""Find the meaning of an error that a server sends inside a stream, after the HTTP status.

Servers put the status that corresponds to the error into different fields and in different forms. This module
reads all of them. It does not depend on SDKs or on Podium's error classes.
"""

import re
from collections.abc import Iterator, Mapping
from typing import cast

from serving.workers.error_meaning import meaning_of

STATUS_FIELDS = ("status", "status_code", "statusCode", "http_status", "http_code", "code", "type")
"""Fields in which servers put the status, as a number or a word. The most reliable comes first."""
STATUS_OF = {
    "badrequest": 400,
    "invalidrequest": 400,
    "invalidargument": 400,
    "failedprecondition": 400,
    "validation": 400,
    "contextlengthexceeded": 400,
    "invalidprompt": 400,
    "authentication": 401,
    "unauthenticated": 401,
    "unauthorized": 401,
    "invalidapikey": 401,
    "billing": 402,
    "insufficientbalance": 402,
    "insufficientcredits": 402,
    "permission": 403,
    "permissiondenied": 403,
    "forbidden": 403,
    "accessdenied": 403,
    "notfound": 404,
    "modelnotfound": 404,
    "resourcenotfound": 404,
    "requesttoolarge": 413,
    "unprocessableentity": 422,
    "ratelimit": 429,
    "ratelimitexceeded": 429,
    "toomanyrequests": 429,
    "throttling": 429,
    "resourceexhausted": 429,
    "insufficientquota": 429,
    "tokens": 429,
    "requests": 429,
    "server": 500,
    "api": 500,
    "internal": 500,
    "internalserver": 500,
    "serviceunavailable": 503,
    "unavailable": 503,
    "timeout": 504,
    "deadlineexceeded": 504,
    "overloaded": 529,
}
"""HTTP status by word, in lower case without `_`, spaces, and final `error` or `exception`."""


def error_in_event(body: Mapping[str, object], name: bytes = b"") -> Mapping[str, object] | None:
    """Return the error in an event, together with the status fields next to it, or None."""
    inner = body.get("error")
    if not inner and isinstance(errors := body.get("errors"), list) and errors:
        inner = cast(object, errors[0])
    if not inner:
        is_bare = "choices" not in body and ("message" in body or "detail" in body) and "type" not in body
        is_error = name == b"error" or "error" in (body.get("type"), body.get("object")) or is_bare
        return body if is_error else None
    outer = {field: body[field] for field in STATUS_FIELDS if body.get(field)}
    if isinstance(inner, Mapping):
        return {**outer, **cast(Mapping[str, object], inner)}
    return {**outer, "message": inner if isinstance(inner, str) else str(body)}


def error_code(error: object) -> str:
    return " ".join(str(each) for each in _status_values(error) if not isinstance(each, float))


def status_in_stream(error: object, text: str = "") -> int:
    """Return the HTTP status of a streamed error's JSON or message, or 500 if it shows none."""
    values = list(_status_values(error))
    for each in values:
        if str(each).isdigit() and 400 <= int(str(each)) <= 599:
            return int(str(each))
    for each in values:
        word = re.sub(r"[^a-z]", "", str(each).lower())
        status = STATUS_OF.get(re.sub(r"(error|exception)+$", "", word), STATUS_OF.get(word))
        if status is not None:
            return status
    return 400 if meaning_of(400, text, error_code(error)) else 500


def _status_values(error: object) -> Iterator[object]:
    """Yield the values of an error's status fields, and of those of nested errors."""
    if not isinstance(error, Mapping):
        return
    body = cast(Mapping[str, object], error)
    yield from (body[name] for name in STATUS_FIELDS if isinstance(body.get(name), str | int) and body[name])
    for name in ("error", "details", "metadata"):
        yield from _status_values(body.get(name))
