"""Tables of access: the cost of each kind of route (`serving/api/route_access.py`), and the routes with the statuses that
test_route_permissions.py expects. `podium docs` writes them into docs/access.md.
"""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.serving.api.test_route_permissions import AccessCase

NO_KEY = 0
"""Index of the status without a key. The next one, for an unknown key, is always the same."""


def table() -> str:
    return "\n\n".join("\n".join(lines) for lines in (_costs(), _routes())) + "\n"


def _costs() -> list[str]:
    """Return the concurrency and memory limits of each kind of request."""
    from serving.api.dialects.table import DIALECTS
    from serving.api.route_access import access_table

    kinds = {access.cost.name: access.cost for access in access_table(DIALECTS).values()}
    rows = [[each.name, each.streams, each.memory] for each in kinds.values()]
    return _lines(["kind", "concurrent responses", "memory"], rows)


def _routes() -> list[str]:
    """Return the routes, grouped by scope, kind and who may call them."""
    from serving.api.dialects.table import DIALECTS
    from serving.api.route_access import access_table
    from tests.serving.api.test_route_permissions import TABLE

    rows = {_shape(place): access for place, access in access_table(DIALECTS).items()}
    groups: dict[tuple[str, ...], list[str]] = {}
    for route in TABLE:
        access = rows[_shape(f"{route.method} {route.path.rstrip('/') or '/'}")]
        key = (access.who.value, access.cost.name, *_statuses(route))
        groups.setdefault(key, []).append(_request(route))
    return _lines(["scope", "kind", *_callers(), "routes"], _grouped(groups))


def _callers() -> list[str]:
    from tests.serving.api.test_route_permissions import WHO

    return ["no or unknown key", *map(str, WHO[2:])]


def _statuses(route: "AccessCase") -> tuple[str, ...]:
    assert route.statuses[NO_KEY] == route.statuses[NO_KEY + 1], "one column shows both"
    return tuple(map(_in_words, route.statuses[NO_KEY + 1 :]))


def _in_words(status: int) -> str:
    """Return "yes" for a request that passes. Some of these get 400 in the tests for other reasons."""
    return "yes" if status <= 400 else str(status)


def _request(route: "AccessCase") -> str:
    note = " (in a conversation)" if "conversation" in (route.body or {}) else ""
    return f"`{route.method} {route.path}`{note}"


def _shape(place: str) -> str:
    return re.sub(r"\{[^}]+\}", "{}", place)


def _grouped(groups: dict[tuple[str, ...], list[str]]) -> list[list[str]]:
    return [[*key, ", ".join(dict.fromkeys(requests))] for key, requests in groups.items()]


def _lines(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
