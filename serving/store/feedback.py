"""Feedback on runs: whether the answer was good, and what the right answer would have been.

Each key can give feedback once per run. Later feedback replaces it. The texts of the feedback are removed
together with the texts of the run. The rest is removed together with the run.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select

from serving.database.inserts import RowInsert
from serving.database.schema import run_feedback
from serving.database.writer import Operation


@dataclass(frozen=True, slots=True)
class Feedback:
    """Feedback on a run.

    Args:
        key_id: id of the key that sent the feedback, or "" if the server has no keys.
        score: score from 0 (bad) to 1 (good), or None.
        labels: labels that the team has chosen.
    """

    run_id: str
    key_id: str
    made_us: int
    score: float | None = None
    labels: tuple[str, ...] = ()
    comment: str = ""
    expected: str = ""


COLUMNS = ("run_id", "key_id", "made_us", "score", "labels", "comment", "expected")
PUT = RowInsert(run_feedback, COLUMNS, update=COLUMNS[2:])
OF_RUN = select(run_feedback).order_by(run_feedback.c.made_us)


def load_feedback(row: Row[Any]) -> Feedback:
    labels = tuple(json.loads(row.labels))
    return Feedback(row.run_id, row.key_id, row.made_us, row.score, labels, row.comment, row.expected)


def _values(feedback: Feedback) -> tuple[object, ...]:
    labels = json.dumps(feedback.labels)
    return (
        feedback.run_id,
        feedback.key_id,
        feedback.made_us,
        feedback.score,
        labels,
        feedback.comment,
        feedback.expected,
    )


def _give(connection: Connection, items: Sequence[Feedback]) -> list[None]:
    newest = {(each.run_id, each.key_id): _values(each) for each in items}
    PUT.execute(connection, list(newest.values()))
    return [None] * len(items)


GIVE_FEEDBACK: Operation[Feedback, None] = Operation("feedback", _give)
"""Operation that stores feedback. Earlier feedback of the same key on the same run is replaced."""
