"""Generate the tables of docs/errors.md: all error codes, and how some APIs report them differently.

The cause of an error is the first paragraph of the docstring of its class in `conductor/errors.py`. Its code,
status and remedy are in `serving/errors.py`.
"""

import inspect
from collections.abc import Iterable

from conductor.errors import PodiumError
from serving.api.dialect import Dialect
from serving.api.dialects.messages.dialect import MessagesDialect
from serving.api.dialects.responses.dialect import ResponsesDialect
from serving.errors import TABLE

APIS: tuple[tuple[str, Dialect], ...] = (("Responses", ResponsesDialect()), ("Messages", MessagesDialect()))
"""APIs whose statuses, types or codes differ from those of all others."""


def generate() -> str:
    """Generate both tables with their headings, as Markdown."""
    return "\n".join([
        "## Codes\n",
        *_table(["status, type", "code", "retry", "cause", "remedy"], map(_row, _errors())),
        "\n## Other statuses and types\n",
        "Responses and Messages report some errors with another status, type or code. An empty cell means that the API reports the error as in the table above.\n",
        *_table(["code", *(name for name, _ in APIS)], _differences()),
    ])  # fmt: skip


def cause(error_class: type[PodiumError]) -> str:
    """Return the first paragraph of the class's docstring."""
    return " ".join((inspect.cleandoc(error_class.__doc__ or "").partition("\n\n")[0]).split())


def _errors() -> list[type[PodiumError]]:
    return sorted(TABLE, key=lambda error_class: TABLE[error_class].status)


def _row(error_class: type[PodiumError]) -> list[str]:
    row = TABLE[error_class]
    return [f"{row.status} `{row.type}`", f"`{row.code}`", _retry(error_class), cause(error_class), row.remedy]  # fmt: skip


def _retry(error_class: type[PodiumError]) -> str:
    if not error_class.retryable:
        return "no"
    return "after `Retry-After`" if hasattr(error_class, "retry_after_s") else "yes"


def _differences() -> Iterable[list[str]]:
    """Yield the table rows of errors that an API reports differently, one per difference."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for error_class in _errors():
        reports = tuple(_report(dialect, error_class) for _, dialect in APIS)
        groups.setdefault(reports, []).append(f"`{TABLE[error_class].code}`")
    for reports, codes in groups.items():
        if any(reports):
            yield [", ".join(codes), *reports]


def _report(dialect: Dialect, error_class: type[PodiumError]) -> str:
    """Return those of an error's status, type and code in an API that differ from the usual ones."""
    row, error = TABLE[error_class], error_class("")
    body = dialect.error_body(error, None)["error"]
    status = str(dialect.status(error, is_paid=False, is_joined=False))
    pairs = ((status, str(row.status)), (f"`{body['type']}`", f"`{row.type}`"), (f"code `{body['code']}`", f"code `{row.code}`"))  # fmt: skip
    return ", ".join(here for here, elsewhere in pairs if here != elsewhere)


def _table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
