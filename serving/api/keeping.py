"""Requests whose runs outlive their clients: `Idempotency-Key`, `podium.keep`, `podium.background`."""

import hashlib
from dataclasses import dataclass

from starlette.requests import Request

from conductor.errors import BadTask
from serving.accounts.caller import Caller
from serving.api.request import Podium
from serving.redaction.personal import PersonalDataRedactor
from serving.sessions.deduplication import HEADER, IdempotencyKey

MOST_CHARS = 255


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a run outlives its client.

    Args:
        key: the client's name for the request; None: each request is a new one.
        may_change: its answer may be replaced by another one; not if its events are numbered for good.
    """

    key: IdempotencyKey | None
    may_change: bool = True


async def keeping_of(request: Request, caller: Caller, podium: Podium, *, may_change: bool) -> Keeping | None:
    """Return how the run of a request outlives its client, or None if it does not. `may_change`: see `Keeping`.

    Raises:
        BadTask: the `Idempotency-Key` is malformed.
    """
    name = request.headers.get(HEADER)
    if name is not None and not (0 < len(name) <= MOST_CHARS and name.isascii() and name.isprintable()):
        raise BadTask(f"{HEADER} must be 1 to {MOST_CHARS} printable ASCII characters.", param=HEADER)
    if name is None and not (podium.keep or podium.background):
        return None
    if name is None:
        return Keeping(None, may_change)
    body_hash = _digest(request.scope["path"].encode() + b"\0" + await request.body())
    return Keeping(IdempotencyKey(caller.account.key_id, _name_on_record(name), body_hash), may_change)


def _name_on_record(name: str) -> str:
    """Return `name` as it is stored, whatever the policy: an address or a key is stored as its digest. Others stay as they
    are, so that replicas of an earlier version find the same claims.
    """
    return name if PersonalDataRedactor()(name) == name else f"sha256:{_digest(name.encode())}"


def _digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()
