"""Storage of the answer cache: maps requests to the runs that answered them. `answer_cache.py` decides what
is cached.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from serving.database.inserts import RowInsert
from serving.database.schema import cached_answer
from serving.database.writer import Operation


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """Cached answer of a request.

    Args:
        owner: id of the team, or of the key if it has no team.
        asked: hash of the request.
        run_id: id of the run that answered.
        drop_us: expiry time in microseconds since 1970.
    """

    owner: str
    asked: str
    run_id: str
    drop_us: int


KEEP = RowInsert(cached_answer, ["owner", "asked", "run_id", "drop_us"], update=["run_id", "drop_us"])


def _keep(connection: Connection, answers: Sequence[CachedAnswer]) -> list[None]:
    newest = {(each.owner, each.asked): (each.run_id, each.drop_us) for each in answers}
    KEEP.execute(connection, [(*key, *values) for key, values in sorted(newest.items())])  # no deadlock
    return [None] * len(answers)


KEEP_ANSWER: Operation[CachedAnswer, None] = Operation("cache of answers", _keep)
"""Store which run answers a request. Replaces an earlier entry."""
