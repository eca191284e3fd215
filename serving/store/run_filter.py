"""Filters for runs: by status, requested model, called workers, cost and words.

Workers and words are stored when a run ends.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from conductor.model.messages import Text
from conductor.run.record import Record, RunRecords

MOST_CHARS = 20_000
"""Characters of the question, and of the answer, that words are searched in."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Selects runs that meet all conditions. None: no condition.

    Args:
        worker: was called in the run.
        min_cost_usd, max_cost_usd: bounds of its cost. A run of unknown cost meets neither.
        words: are in its question or its answer, in this order; case does not matter.
        model: was requested.
        status: current status.
        team_id: of its caller.
        rated: the run has feedback.
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
        """Return whether the filter selects a run without feedback."""
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


ANY_RUN = RunFilter()


def workers_of(records: RunRecords) -> list[str]:
    """Return the workers that were called in a run and in the runs inside it, sorted."""
    return sorted({call.worker for record in records for call in record.calls})


def text_of(records: RunRecords) -> str:
    """Return the text that words are searched in: question and answer in lower case, or "" if the texts are
    not kept.
    """
    if not records.has_content:
        return ""
    record = records.record
    question = "\n".join(_questions(record))
    # PostgreSQL text cannot contain NUL or lone surrogates
    text = f"{question[-MOST_CHARS:]}\n{record.answer[:MOST_CHARS]}".casefold().replace("\0", " ")
    return text.encode(errors="replace").decode()


def _questions(record: Record) -> Iterator[str]:
    for message in record.task.conversation:
        if message.role == "user":
            yield from (part.text for part in message.parts if isinstance(part, Text))
