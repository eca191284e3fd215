"""Whom the conductor's plans ask, learned from the records of this router's runs. Knows nothing of what is done with it."""

from collections import Counter, defaultdict, deque

from conductor.run.plan_record import PlanRecord
from conductor.run.record import Record
from conductor.run.speculation import may_guess

NEWEST = 200
"""Plans of a model that are remembered."""


def _newest_workers() -> deque[str | None]:
    return deque(maxlen=NEWEST)


class PlanHabits:
    """For each served name: which of the newest plans were one step that has the user's own words, and whose."""

    def __init__(self) -> None:
        self._asked = defaultdict[str, deque[str | None]](_newest_workers)

    def count(self, record: Record) -> bool:
        """Take the first plan of a run into account. False: it says nothing, because the conductor was not asked or
        was interrupted, or because nobody could have known its call before.
        """
        plan = record.plans[0] if record.plans else None
        if plan is None or plan.source != "conductor" or not may_guess(record.task):
            return False
        if plan.ended_s is None or plan.is_interrupted:
            return False
        self._asked[record.model].append(_only_worker(plan))
        return True

    def likeliest(self, model: str, min_plans: int, min_agreement: float) -> str | None:
        """The worker that most plans of `model` asked; None where fewer than `min_plans` are known, or a smaller share than
        `min_agreement` asked it.
        """
        asked = self._asked[model]
        if len(asked) < max(min_plans, 1):
            return None
        (worker, count), *_ = Counter(asked).most_common(1)
        return worker if count >= min_agreement * len(asked) else None


def _only_worker(plan: PlanRecord) -> str | None:
    """Whom a plan of one step asks the user's own words; None: it is another plan, or none that runs."""
    runs = plan.rejection is None and plan.failure is None and len(plan.steps) == 1
    return plan.steps[0].worker if runs and not plan.steps[0].subtask else None
