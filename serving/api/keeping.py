"""Which requests outlive their clients, and which are an earlier one again: `Idempotency-Key`, `podium.keep`,
`podium.background`.
"""

import hashlib
from dataclasses import dataclass

from starlette.requests import Request

from conductor.errors import BadTask, NotTheSame
from serving.accounts.caller import Caller
from serving.api.request import Podium
from serving.redaction.personal import PersonalDataRedactor
from serving.runs.claims import Claim
from serving.runs.store import RecordStore

HEADER = "Idempotency-Key"
MOST_CHARS = 255


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a run outlives its client.

    Args:
        account: whose it is.
        name: the client's own for the request, or a digest of it if a secret or personal data is in it; None: each sending
            is a request of its own.
        body_hash: of what is asked.
        may_change: whether its answer may become another one; not where its events are numbered for good.
    """

    account: str
    name: str | None
    body_hash: str
    may_change: bool = True

    async def claim(self, store: RecordStore, run_id: str) -> Claim | None:
        """Claim the request's name; gives the claim that holds, None where it has no name.

        Raises:
            NotTheSame: it was claimed for something else.
            StoreUnavailable: the store is away. Nothing was run.
        """
        if self.name is None:
            return None
        found = await store.claim(Claim(self.account, self.name, self.body_hash, run_id, store.owner))
        if found.body_hash != self.body_hash:
            raise NotTheSame(
                f"{HEADER}: an earlier request of this name asked for something else. Take another name.",
                param=HEADER,
            )
        return found


async def keeping_of(request: Request, caller: Caller, podium: Podium, *, may_change: bool) -> Keeping | None:
    """How the run that `request` asks for outlives its client; None: it does not. `may_change`: see `Keeping`.

    Raises:
        BadTask: the header is no name.
    """
    name = request.headers.get(HEADER)
    if name is not None and not (0 < len(name) <= MOST_CHARS and name.isascii() and name.isprintable()):
        raise BadTask(f"{HEADER} must be 1 to {MOST_CHARS} printable ASCII characters.", param=HEADER)
    if name is None and not (podium.keep or podium.background):
        return None
    asked = _digest(request.scope["path"].encode() + b"\0" + await request.body())
    return Keeping(caller.account.key_id, _name_on_record(name) if name else None, asked, may_change)


def _name_on_record(name: str) -> str:
    """Return `name` as it is stored, whatever the policy: an address or a key is stored as its digest. Others stay as they
    are, so that replicas of an earlier version find the same claims.
    """
    return name if PersonalDataRedactor()(name) == name else f"sha256:{_digest(name.encode())}"


def _digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()
