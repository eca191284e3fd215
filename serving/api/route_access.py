"""Table of all routes: who may call each, and which resources its answer may hold.

`Admission` (`route_admission.py`) applies the table before a route begins. The route itself makes the checks that
depend on a stored object, such as which team owns it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from serving.api.dialect import Dialects
from serving.edge.exchange import PIECE_BYTES

READ_BYTES = 1_048_576
"""Bytes of a stored file to read at once: many, because each read skips all earlier ones."""


class Who(StrEnum):
    """Callers that may use a route: everyone, every key, or keys with this scope."""

    PUBLIC = "everyone"
    ANY_KEY = "any key"
    RUN = "run"
    READ = "read"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Cost:
    """Resources that a kind of request may use until its response is complete.

    Args:
        name: name of the kind.
        counted: limit on open requests that applies until the client has received the whole response: `reads` or
            `changes`, or "" if there is no limit.
        in_turn: whether only a few requests of this kind are processed at the same time. Teams then take turns.
        n_bytes: bytes of `limits.max_unread_bytes` to reserve when the request starts.
        streams, memory: text about these limits for the table in docs/access.md.
    """

    name: str
    counted: str = ""
    in_turn: bool = False
    n_bytes: int = 0
    streams: str = "`limits.max_reads`"
    memory: str = "A body of more than 64 kB, and a stored run while it is loaded, count towards `limits.max_running_bytes`. A response of more than 64 kB counts towards `limits.max_unread_bytes`."


PROBE = Cost(
    "probe",
    streams="no limit, never queued",
    memory="Each request uses less than 10 kB, because Podium does not wait for its body. All requests within a second share one check of the engines.",
)
CONSTANT = Cost("constant", counted="reads")
READ = Cost("read", counted="reads", in_turn=True)
WATCH = Cost(
    "event stream",
    counted="reads",
    in_turn=True,
    n_bytes=2 * PIECE_BYTES,
    memory="Each stream uses 128 kB of `limits.max_unread_bytes`. The events of each run that it watches use another 256 kB of it, or more if one event is larger.",
)
DOWNLOAD = Cost(
    "download",
    counted="reads",
    in_turn=True,
    n_bytes=READ_BYTES,
    memory="Each download uses 1 MB of `limits.max_unread_bytes`.",
)
CHANGE = Cost(
    "change",
    counted="changes",
    streams="a quarter of `limits.max_reads`, counted separately",
)
UPLOAD = Cost(
    "upload",
    counted="changes",
    streams="a quarter of `limits.max_reads`, counted separately",
    memory="All bodies together use at most the share `batches.room` of `limits.max_running_bytes`.",
)
RUN = Cost(
    "run",
    streams="`limits.max_running`",
    memory="A body of more than 64 kB, and then its conversation, count towards `limits.max_running_bytes`, and so do earlier texts while a request loads them.",
)


@dataclass(frozen=True, slots=True)
class RouteAccess:
    """Access rule of one route: which callers may use it, and which resources a request may use."""

    who: Who
    cost: Cost


ROUTES: Mapping[str, RouteAccess] = {
    "GET /healthz": RouteAccess(Who.PUBLIC, PROBE),
    "GET /readyz": RouteAccess(Who.PUBLIC, PROBE),
    "GET /": RouteAccess(Who.PUBLIC, CONSTANT),
    "GET /console": RouteAccess(Who.PUBLIC, CONSTANT),
    "GET /v1/models": RouteAccess(Who.ANY_KEY, READ),
    "GET /v1/models/{name:path}": RouteAccess(Who.ANY_KEY, READ),
    "GET /v1/openapi.json": RouteAccess(Who.ANY_KEY, CONSTANT),
    "GET /v1/budget": RouteAccess(Who.ANY_KEY, READ),
    "POST /v1/plans": RouteAccess(Who.RUN, RUN),
    "POST /v1/messages/count_tokens": RouteAccess(Who.RUN, READ),
    "POST /v1/responses/input_tokens": RouteAccess(Who.RUN, READ),
    "POST /v1/responses/compact": RouteAccess(Who.RUN, READ),
    "GET /v1/responses/{response_id}": RouteAccess(Who.READ, READ),
    "GET /v1/responses/{response_id}/input_items": RouteAccess(Who.READ, READ),
    "POST /v1/responses/{response_id}/cancel": RouteAccess(Who.RUN, CHANGE),
    "DELETE /v1/responses/{response_id}": RouteAccess(Who.RUN, CHANGE),
    "POST /v1/conversations": RouteAccess(Who.RUN, CHANGE),
    "GET /v1/conversations/{conversation_id}": RouteAccess(Who.READ, READ),
    "POST /v1/conversations/{conversation_id}": RouteAccess(Who.RUN, CHANGE),
    "DELETE /v1/conversations/{conversation_id}": RouteAccess(Who.RUN, CHANGE),
    "POST /v1/conversations/{conversation_id}/items": RouteAccess(Who.RUN, CHANGE),
    "GET /v1/conversations/{conversation_id}/items": RouteAccess(Who.READ, READ),
    "GET /v1/conversations/{conversation_id}/items/{item_id}": RouteAccess(Who.READ, READ),
    "DELETE /v1/conversations/{conversation_id}/items/{item_id}": RouteAccess(Who.RUN, CHANGE),
    "GET /v1/workflows": RouteAccess(Who.READ, READ),
    "GET /v1/costs": RouteAccess(Who.READ, READ),
    "GET /v1/workflows/{id}": RouteAccess(Who.READ, READ),
    "GET /v1/workflows/{id}/events": RouteAccess(Who.READ, WATCH),
    "POST /v1/workflows/{id}/cancel": RouteAccess(Who.RUN, CHANGE),
    "POST /v1/workflows/{id}/feedback": RouteAccess(Who.RUN, CHANGE),
    "POST /v1/files": RouteAccess(Who.RUN, UPLOAD),
    "GET /v1/files": RouteAccess(Who.READ, READ),
    "GET /v1/files/{id}": RouteAccess(Who.READ, READ),
    "GET /v1/files/{id}/content": RouteAccess(Who.READ, DOWNLOAD),
    "DELETE /v1/files/{id}": RouteAccess(Who.RUN, CHANGE),
    "POST /v1/batches": RouteAccess(Who.RUN, CHANGE),
    "GET /v1/batches": RouteAccess(Who.READ, READ),
    "GET /v1/batches/{id}": RouteAccess(Who.READ, READ),
    "POST /v1/batches/{id}/cancel": RouteAccess(Who.RUN, CHANGE),
    "GET /v1/replicas": RouteAccess(Who.ADMIN, READ),
    "GET /v1/workers": RouteAccess(Who.ADMIN, READ),
    "GET /v1/admin/ledger": RouteAccess(Who.ADMIN, READ),
    "GET /v1/admin/teams": RouteAccess(Who.ADMIN, READ),
    "POST /v1/admin/teams": RouteAccess(Who.ADMIN, CHANGE),
    "POST /v1/admin/teams/{id}": RouteAccess(Who.ADMIN, CHANGE),
    "GET /v1/admin/teams/{id}/budget": RouteAccess(Who.ADMIN, READ),
    "POST /v1/admin/teams/{id}/budget": RouteAccess(Who.ADMIN, CHANGE),
    "GET /v1/admin/teams/{id}/policy": RouteAccess(Who.ADMIN, READ),
    "POST /v1/admin/teams/{id}/policy": RouteAccess(Who.ADMIN, CHANGE),
    "GET /v1/admin/keys": RouteAccess(Who.ADMIN, READ),
    "POST /v1/admin/keys": RouteAccess(Who.ADMIN, CHANGE),
    "GET /v1/admin/keys/{id}": RouteAccess(Who.ADMIN, READ),
    "POST /v1/admin/keys/{id}": RouteAccess(Who.ADMIN, CHANGE),
    "DELETE /v1/admin/keys/{id}": RouteAccess(Who.ADMIN, CHANGE),
    "POST /v1/admin/keys/{id}/rotate": RouteAccess(Who.ADMIN, CHANGE),
    "GET /v1/admin/keys/{id}/budget": RouteAccess(Who.ADMIN, READ),
    "POST /v1/admin/keys/{id}/budget": RouteAccess(Who.ADMIN, CHANGE),
    "GET /v1/admin/keys/{id}/policy": RouteAccess(Who.ADMIN, READ),
    "POST /v1/admin/keys/{id}/policy": RouteAccess(Who.ADMIN, CHANGE),
    "POST /v1/admin/reload": RouteAccess(Who.ADMIN, CHANGE),
    "GET /v1/admin/openapi.json": RouteAccess(Who.ADMIN, CONSTANT),
}
"""Access rules by method and path, except for the dialects' paths. HEAD has the same rule as GET."""


def access_table(dialects: Dialects) -> dict[str, RouteAccess]:
    """Return the access rules of all routes. Each path of `dialects` starts a run."""
    return {f"POST {path}": RouteAccess(Who.RUN, RUN) for path in dialects.by_path} | dict(ROUTES)
