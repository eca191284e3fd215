"""Tables of docs/errors.md: every error code, and how each API reports it.

The cause of an error is the first paragraph of its class (`conductor/errors.py`). Its code, status and remedy
are its row in `serving/errors.py`.
"""

import inspect
from collections.abc import Iterable

from conductor.errors import PodiumError
from serving.api.dialect import Dialect
from serving.api.dialects.chat.dialect import ChatDialect
from serving.api.dialects.messages.dialect import MessagesDialect
from serving.api.dialects.responses.dialect import ResponsesDialect
from serving.errors import TABLE

APIS: tuple[tuple[str, Dialect], ...] = (
    ("Chat Completions and all other routes", ChatDialect()),
    ("Responses", ResponsesDialect()),
    ("Messages", MessagesDialect()),
)


def generate() -> str:
    """Return both tables with their titles."""
    return "\n".join([
        "## Codes\n",
        *_table(["HTTP", "code", "retry", "cause", "remedy"], map(_row, _errors())),
        "\n## Status and type in each API\n",
        "Until a model is called; afterwards [a paid run](#paid-runs) may change the status.\n",
        *_table(["code", *(name for name, _ in APIS)], _grouped()),
    ])  # fmt: skip


def cause(error_class: type[PodiumError]) -> str:
    """Return the first paragraph of the class's docstring."""
    return " ".join((inspect.cleandoc(error_class.__doc__ or "").partition("\n\n")[0]).split())


def _errors() -> list[type[PodiumError]]:
    return sorted(TABLE, key=lambda error_class: TABLE[error_class].status)


def _row(error_class: type[PodiumError]) -> list[str]:
    row = TABLE[error_class]
    return [str(row.status), f"`{row.code}`", _retry(error_class), cause(error_class), row.remedy]


def _retry(error_class: type[PodiumError]) -> str:
    if not error_class.retryable:
        return "no"
    return "after `Retry-After`" if hasattr(error_class, "retry_after_s") else "yes"


def _grouped() -> Iterable[list[str]]:
    """Yield the codes that each API reports alike, before any model was called."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for error_class in _errors():
        reports = tuple(_report(dialect, error_class) for _, dialect in APIS)
        groups.setdefault(reports, []).append(f"`{TABLE[error_class].code}`")
    for reports, codes in groups.items():
        yield [", ".join(codes), *reports]


def _report(dialect: Dialect, error_class: type[PodiumError]) -> str:
    """Return status and type of an error in an API, and its code there if that is another."""
    error = error_class("")
    body = dialect.error_body(error, None)["error"]
    code = "" if body["code"] == TABLE[error_class].code else f", code `{body['code']}`"
    return f"{dialect.status(error, is_paid=False, is_joined=False)} `{body['type']}`{code}"


def _table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
