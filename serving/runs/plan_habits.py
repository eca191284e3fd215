"""Whom the conductor's plans ask, learned from the records of this router's runs. Knows nothing of what is done with it."""

from collections import Counter, OrderedDict, deque

from conductor.run.plan_record import PlanRecord
from conductor.run.record import Record
from conductor.run.speculation import may_guess

NEWEST = 200
"""Plans of a model and a pool that are remembered."""
MODELS = 256
"""Models and pools that are remembered: requests may name any part of the pool."""
Key = tuple[str, frozenset[str]]
"""The name that a request asked for, and the workers that its plans might use."""


class PlanHabits:
    """For each served name and each pool: which of the newest plans were one step that has the user's own words, and whose."""

    def __init__(self) -> None:
        self._asked: OrderedDict[Key, deque[str | None]] = OrderedDict()

    def count(self, record: Record) -> bool:
        """Take the first plan of a run into account. False: it says nothing, because the conductor was not asked or
        was interrupted, or because nobody could have known its call before.
        """
        plan = record.plans[0] if record.plans else None
        if plan is None or plan.source != "conductor" or not may_guess(record.task):
            return False
        if plan.ended_s is None or plan.is_interrupted:
            return False
        key = _key(record)
        asked = self._asked.setdefault(key, deque(maxlen=NEWEST))
        self._asked.move_to_end(key)
        asked.append(_only_worker(plan))
        if len(self._asked) > MODELS:
            self._asked.popitem(last=False)
        return True

    def likeliest(self, record: Record, min_plans: int, min_agreement: float) -> str | None:
        """The worker that most plans asked which were like the one of `record`; None where fewer than `min_plans` are known,
        or a smaller share than `min_agreement` asked it.
        """
        asked = self._asked.get(_key(record), ())
        if len(asked) < max(min_plans, 1):
            return None
        (worker, count), *_ = Counter(asked).most_common(1)
        return worker if count >= min_agreement * len(asked) else None


def _key(record: Record) -> Key:
    return record.task.model, frozenset(record.workers)


def _only_worker(plan: PlanRecord) -> str | None:
    """Whom a plan of one step asks the user's own words; None: it is another plan, or none that runs."""
    runs = plan.rejection is None and plan.failure is None and len(plan.steps) == 1
    return plan.steps[0].worker if runs and not plan.steps[0].subtask else None
