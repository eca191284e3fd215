"""Filters for runs: by status, requested model, conversation, called workers, cost and words.

The store receives the workers and words of a run when the run ends.
"""

from dataclasses import dataclass
from decimal import Decimal

from conductor.run.record import RunRecords
from serving.store.rows import text_of, workers_of


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Filter that selects the runs that meet all its conditions. None means no condition.

    Args:
        min_cost_usd, max_cost_usd: bounds of the run's cost. If either is set, runs of unknown cost are not
            selected.
        words: text that the question or the answer contains. Case does not matter.
        conversation: id of the conversation that the run belongs to.
    """

    worker: str | None = None
    min_cost_usd: Decimal | None = None
    max_cost_usd: Decimal | None = None
    words: str | None = None
    model: str | None = None
    status: str | None = None
    rated: bool = False
    team_id: str | None = None
    conversation: str | None = None

    def matches(self, records: RunRecords) -> bool:
        """Return whether the filter selects a run, assuming that the run has no feedback."""
        if self.rated:
            return False
        record, cost_usd = records.record, records.record.cost_usd
        if self.model not in (None, record.model) or self.status not in (None, record.status):
            return False
        if self.team_id not in (None, record.account.team_id):
            return False
        if self.conversation not in (None, record.task.sampling.options.conversation):
            return False
        if self.worker is not None and self.worker not in workers_of(records):
            return False
        if self.min_cost_usd is not None and (cost_usd is None or cost_usd < self.min_cost_usd):
            return False
        if self.max_cost_usd is not None and (cost_usd is None or cost_usd > self.max_cost_usd):
            return False
        return self.words is None or self.words.casefold() in text_of(records)


ANY_RUN = RunFilter()
