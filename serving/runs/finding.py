"""How runs are found again: by status, by the model that was asked, by the workers that answered in them, by
cost and by words.

What they are found by is written once a run has ended. Knows no database.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from conductor.model.messages import Text
from conductor.run.record import Record, RunRecords

MOST_CHARS = 20_000
"""Of a run's question and of its answer, those that can be found by words."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs are wanted; None: any.

    Args:
        worker: was called in it.
        min_cost_usd, max_cost_usd: it cost that much; a run whose cost is not known is not found by it.
        words: are in its question or its answer, in this order, in small letters or capitals.
        model: was asked for.
        status: it has now.
        team_id: asked for it.
        rated: somebody has said something of it.
    """

    worker: str | None = None
    min_cost_usd: Decimal | None = None
    max_cost_usd: Decimal | None = None
    words: str | None = None
    model: str | None = None
    status: str | None = None
    rated: bool = False
    team_id: str | None = None

    def matches(self, records: RunRecords) -> bool:
        """Whether a run that is at hand, and of which nothing is said yet, is wanted."""
        if self.rated:
            return False
        record, cost_usd = records.record, records.record.cost_usd
        if self.model not in (None, record.model) or self.status not in (None, record.status):
            return False
        if self.team_id not in (None, record.account.team_id):
            return False
        if self.worker is not None and self.worker not in workers_of(records):
            return False
        if self.min_cost_usd is not None and (cost_usd is None or cost_usd < self.min_cost_usd):
            return False
        if self.max_cost_usd is not None and (cost_usd is None or cost_usd > self.max_cost_usd):
            return False
        return self.words is None or self.words.casefold() in text_of(records)


ANY = Wanted()


def workers_of(records: RunRecords) -> list[str]:
    """The workers that were called in a run and in the runs inside it, sorted."""
    return sorted({call.worker for record in records for call in record.calls})


def text_of(records: RunRecords) -> str:
    """What a run is found by: its question and its answer, in small letters; empty where its texts are gone."""
    if not records.has_content:
        return ""
    record = records.record
    question = "\n".join(_questions(record))
    # PostgreSQL's text has no NUL, and neither half characters nor these are looked for
    found = f"{question[-MOST_CHARS:]}\n{record.answer[:MOST_CHARS]}".casefold().replace("\0", " ")
    return found.encode(errors="replace").decode()


def _questions(record: Record) -> Iterator[str]:
    for message in record.task.conversation:
        if message.role == "user":
            yield from (part.text for part in message.parts if isinstance(part, Text))
