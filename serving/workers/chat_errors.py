"""What an error of OpenAI's chat completions says that it is: its code, and the status it would have had."""

from serving.workers.chat_chunks import fields

STATUS_OF = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "insufficient_quota": 429,
    "tokens": 429,
    "requests": 429,
    "overloaded_error": 529,
    "server_error": 500,
    "internal_error": 500,
    "internal_server_error": 500,
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "context_length_exceeded": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
}
"""The HTTP status that an error inside a stream, where the status is long sent, would have had."""


def error_code(error: object) -> str:
    """The error's machine-readable words: OpenAI's `code` and `type`."""
    given = fields(error)
    return " ".join(str(given[name]) for name in ("code", "type") if given.get(name))


def status_in_stream(error: object) -> int:
    """The status that an error inside a stream stands for. One that does not say what it is, is the server's
    fault: 500.
    """
    for word in error_code(error).lower().split():
        if word.isdigit() and 400 <= int(word) <= 599:
            return int(word)
        if word in STATUS_OF:
            return STATUS_OF[word]
    return 500
