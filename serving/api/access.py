"""Table of all routes: who may call each, and which resources its answer may hold.

`Admission` (`admission.py`) applies it before a route begins. What depends on a stored object, such as its
team, is checked by the route.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from serving.api.dialect import Dialects
from serving.edge.exchange import PIECE_BYTES

READ_BYTES = 1_048_576
"""Bytes to read from a stored file at a time. Large, because the database skips through all that comes
before.
"""


class Who(StrEnum):
    """Who may call a route."""

    PUBLIC = "everyone"
    ANY_KEY = "any key"
    RUN = "run"
    READ = "read"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Cost:
    """Resources that answering a kind of request may hold.

    Args:
        name: name of the kind.
        counted: `reads` or `changes`: the limit that the answer counts against until the client has all of
            it. Empty: none.
        in_turn: whether only a few are processed at once, in turns among keys.
        n_bytes: bytes of `limits.max_unread_bytes` to reserve from the beginning.
        streams, memory: description of these limits in docs/access.md.
    """

    name: str
    counted: str = ""
    in_turn: bool = False
    n_bytes: int = 0
    streams: str = "`limits.max_reads`"
    memory: str = "above 64 kB: body in `limits.max_running_bytes`, response in `limits.max_unread_bytes`"


PROBE = Cost("probe", streams="no limit, never queued", memory="under 10 kB")
CONSTANT = Cost("constant", counted="reads")
READ = Cost("read", counted="reads", in_turn=True)
WATCH = Cost(
    "event stream",
    counted="reads",
    in_turn=True,
    n_bytes=2 * PIECE_BYTES,
    memory="`limits.max_unread_bytes`: 128 kB, and 256 kB of events per watched run; larger events whole",
)
DOWNLOAD = Cost(
    "download",
    counted="reads",
    in_turn=True,
    n_bytes=READ_BYTES,
    memory="`limits.max_unread_bytes`: 1 MB",
)
CHANGE = Cost(
    "change",
    counted="changes",
    streams="a quarter of `limits.max_reads`, counted apart",
)
UPLOAD = Cost(
    "upload",
    counted="changes",
    streams="a quarter of `limits.max_reads`, counted apart",
    memory="body: `batches.room` of `limits.max_running_bytes`",
)
RUN = Cost(
    "run",
    streams="`limits.max_running`",
    memory="conversation: `limits.max_running_bytes`",
)


@dataclass(frozen=True, slots=True)
class Access:
    """Row of the table."""

    who: Who
    cost: Cost


ROUTES: Mapping[str, Access] = {
    "GET /healthz": Access(Who.PUBLIC, PROBE),
    "GET /readyz": Access(Who.PUBLIC, PROBE),
    "GET /console": Access(Who.PUBLIC, CONSTANT),
    "GET /v1/models": Access(Who.ANY_KEY, READ),
    "GET /v1/models/{name:path}": Access(Who.ANY_KEY, READ),
    "GET /v1/openapi.json": Access(Who.ANY_KEY, CONSTANT),
    "GET /v1/budget": Access(Who.ANY_KEY, READ),
    "POST /v1/plans": Access(Who.RUN, RUN),
    "POST /v1/messages/count_tokens": Access(Who.RUN, READ),
    "POST /v1/responses/input_tokens": Access(Who.RUN, READ),
    "POST /v1/responses/compact": Access(Who.RUN, READ),
    "GET /v1/responses/{response_id}": Access(Who.READ, READ),
    "GET /v1/responses/{response_id}/input_items": Access(Who.READ, READ),
    "POST /v1/responses/{response_id}/cancel": Access(Who.RUN, CHANGE),
    "DELETE /v1/responses/{response_id}": Access(Who.RUN, CHANGE),
    "POST /v1/conversations": Access(Who.RUN, CHANGE),
    "GET /v1/conversations/{conversation_id}": Access(Who.READ, READ),
    "POST /v1/conversations/{conversation_id}": Access(Who.RUN, CHANGE),
    "DELETE /v1/conversations/{conversation_id}": Access(Who.RUN, CHANGE),
    "POST /v1/conversations/{conversation_id}/items": Access(Who.RUN, CHANGE),
    "GET /v1/conversations/{conversation_id}/items": Access(Who.READ, READ),
    "GET /v1/conversations/{conversation_id}/items/{item_id}": Access(Who.READ, READ),
    "DELETE /v1/conversations/{conversation_id}/items/{item_id}": Access(Who.RUN, CHANGE),
    "GET /v1/workflows": Access(Who.READ, READ),
    "GET /v1/workflows/{id}": Access(Who.READ, READ),
    "GET /v1/workflows/{id}/events": Access(Who.READ, WATCH),
    "POST /v1/workflows/{id}/cancel": Access(Who.RUN, CHANGE),
    "POST /v1/workflows/{id}/feedback": Access(Who.RUN, CHANGE),
    "POST /v1/files": Access(Who.RUN, UPLOAD),
    "GET /v1/files": Access(Who.READ, READ),
    "GET /v1/files/{id}": Access(Who.READ, READ),
    "GET /v1/files/{id}/content": Access(Who.READ, DOWNLOAD),
    "DELETE /v1/files/{id}": Access(Who.RUN, CHANGE),
    "POST /v1/batches": Access(Who.RUN, CHANGE),
    "GET /v1/batches": Access(Who.READ, READ),
    "GET /v1/batches/{id}": Access(Who.READ, READ),
    "POST /v1/batches/{id}/cancel": Access(Who.RUN, CHANGE),
    "GET /v1/replicas": Access(Who.ADMIN, READ),
    "GET /v1/workers": Access(Who.ADMIN, READ),
    "GET /v1/admin/ledger": Access(Who.ADMIN, READ),
    "GET /v1/admin/teams": Access(Who.ADMIN, READ),
    "POST /v1/admin/teams": Access(Who.ADMIN, CHANGE),
    "POST /v1/admin/teams/{id}": Access(Who.ADMIN, CHANGE),
    "GET /v1/admin/teams/{id}/budget": Access(Who.ADMIN, READ),
    "POST /v1/admin/teams/{id}/budget": Access(Who.ADMIN, CHANGE),
    "GET /v1/admin/teams/{id}/policy": Access(Who.ADMIN, READ),
    "POST /v1/admin/teams/{id}/policy": Access(Who.ADMIN, CHANGE),
    "GET /v1/admin/keys": Access(Who.ADMIN, READ),
    "POST /v1/admin/keys": Access(Who.ADMIN, CHANGE),
    "GET /v1/admin/keys/{id}": Access(Who.ADMIN, READ),
    "DELETE /v1/admin/keys/{id}": Access(Who.ADMIN, CHANGE),
    "POST /v1/admin/keys/{id}/rotate": Access(Who.ADMIN, CHANGE),
    "GET /v1/admin/keys/{id}/budget": Access(Who.ADMIN, READ),
    "POST /v1/admin/keys/{id}/budget": Access(Who.ADMIN, CHANGE),
    "GET /v1/admin/keys/{id}/policy": Access(Who.ADMIN, READ),
    "POST /v1/admin/keys/{id}/policy": Access(Who.ADMIN, CHANGE),
    "POST /v1/admin/reload": Access(Who.ADMIN, CHANGE),
    "GET /v1/admin/openapi.json": Access(Who.ADMIN, CONSTANT),
}
"""Access by method and path, except for the dialects' paths. HEAD has the same access as GET."""


def access_table(dialects: Dialects) -> dict[str, Access]:
    """Return the whole table, with the paths of `dialects`. Each of those starts a run."""
    return {f"POST {path}": Access(Who.RUN, RUN) for path in dialects.by_path} | dict(ROUTES)
