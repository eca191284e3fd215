"""The record of a run: one value that the response, the log line, the store, evaluation and reward all read.

It is the fold of the run's events (`fold.py`), so it can be read at any time, also while the run goes on.
With its task it is all that is needed to continue the run (`moves.py`), and `codec.py` writes it as JSON.
"""

from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Literal

import msgspec

from conductor.model.call import CallSite
from conductor.model.failure import Attempt, Failure
from conductor.model.messages import PendingCall
from conductor.model.reply import CallResult, FinishReason
from conductor.model.usage import Usage, total
from conductor.model.value import DefaultingValue, Value
from conductor.run.plan_record import PlanRecord, StepRecord, UnmeteredCall
from conductor.run.task import Task
from conductor.run.turns import Segment, StepTurn

VERSION = 1
"""Of the record's form."""
RunStatus = Literal["running", "waiting", "detached", "finished", "failed", "cancelled", "lost", "expired"]
"""`waiting`: for results of tools, which its client is to send. `detached`: left by its process, for another
to continue. `lost`: its process ended and nobody continues it; `expired`: it waited too long. A store says
the last two, no event does."""


def _version() -> int:
    """Return the version as a default that msgspec writes: it leaves out only the defaults that nothing makes."""
    return VERSION


class Account(Value, frozen=True):
    """Who asked for a run: the API key, and the team of people that it belongs to, each by id. Empty where
    no key was asked for, or the key belongs to no team.
    """

    key_id: str = ""
    team_id: str = ""


NOBODY = Account()
NOTHING_USD = Decimal(0)


class Record(DefaultingValue, frozen=True, dict=True):
    """All of a run."""

    id: str
    task: Task
    created: float
    """Unix time."""
    workers: tuple[str, ...] = ()
    """The names that its plans may use, in the order in which the conductor sees them."""
    parent: CallSite | None = None
    """The step of another run whose answer this run is."""
    owner: str = ""
    """The process that runs it."""
    trace_id: str | None = None
    version: Annotated[int, msgspec.Meta(le=VERSION)] = msgspec.field(default_factory=_version)
    """Of the record's form."""
    seq: int = 0
    """The number of its newest event."""
    status: RunStatus = "running"
    plans: tuple[PlanRecord, ...] = ()
    answer: str = ""
    """The whole of it; empty where it did not come to that (what was said by then is in the steps)."""
    finish: FinishReason | None = None
    failure: Failure | None = None
    wall_s: float = 0.0
    """When its newest event happened; while the answer streams, when a piece of it came, to 0.1 s."""
    answer_began_s: float | None = None
    """When the answer's first piece was there for the reader; seconds since the run began."""
    account: Account = NOBODY
    """Who asked for it, and may see it."""
    cached_from: str = ""
    """The id of the run whose answer this one was given; empty where it was answered by itself."""
    segments: tuple[Segment, ...] = ()
    """One for each time that it was suspended."""
    lost_usd: Decimal = NOTHING_USD
    """What was paid for calls whose ends processes before did not write down: `unmetered_calls` has these calls."""

    def __post_init__(self) -> None:
        # Quickly, because a record is copied for each event: a status is always one of our own words.
        is_nobody = self.account is not NOBODY and self.account == NOBODY
        if is_nobody or not self.wall_s or (self.lost_usd is not NOTHING_USD and not self.lost_usd):
            DefaultingValue.__post_init__(self)

    @property
    def shown(self) -> str:
        """The words that its client is shown: the answer, or those beside the calls of tools that it waits for."""
        return self.segments[-1].text if self.status == "waiting" else self.answer

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The calls of tools that it waits for."""
        return self.calls_of_tools(self.segments[-1].calls) if self.status == "waiting" else ()

    def calls_of_tools(self, numbers: Collection[int]) -> tuple[PendingCall, ...]:
        """The calls of those numbers."""
        every = (call for step in self.steps for turn in step.turns for call in turn.calls)
        return tuple(sorted({c.number: c for c in every if c.number in numbers}.values(), key=_number))

    @property
    def n_tool_calls(self) -> int:
        """How many calls of tools there were; the number of the next one."""
        return 1 + max((c.number for s in self.steps for t in s.turns for c in t.calls), default=-1)

    @property
    def model(self) -> str:
        """The name that was asked for."""
        return self.task.model

    @property
    def rounds(self) -> int:
        """How many rounds were begun."""
        return max((plan.round + 1 for plan in self.plans), default=0)

    @property
    def fallback(self) -> str | None:
        """Why one worker answered alone; None where a plan was run."""
        return next((plan.why for plan in self.plans if plan.source == "fallback"), None)

    @cached_property
    def last_answer_plan(self) -> PlanRecord | None:
        """The newest plan that gave an answer."""
        return next((plan for plan in reversed(self.plans) if plan.is_answered), None)

    @cached_property
    def answering_plan(self) -> PlanRecord | None:
        """The plan whose last step is the answer: the newest one that gave one, or else that runs."""
        runs = [plan for plan in self.plans if plan.steps and plan.rejection is None and plan.failure is None]
        return self.last_answer_plan or (runs[-1] if runs else None)

    @property
    def answering(self) -> CallResult | None:
        """The call whose output is the answer; of a run that waits, the one whose words are beside its calls of
        tools, where it was made since the client last sent results.
        """
        plan = self.answering_plan
        if plan is None or not plan.steps:
            return None
        last = plan.steps[-1]
        if self.status == "waiting":
            return next((turn.result for turn in self.new_turns if turn in last.turns), None)
        return last.results[-1] if last.results else None

    @property
    def new_turns(self) -> tuple[StepTurn, ...]:
        """The turns whose calls of tools its client was told of for the first time when it was last suspended."""
        told = {number for segment in self.segments[:-1] for number in segment.calls}
        new = set(self.segments[-1].calls) - told if self.segments else set[int]()
        return tuple(
            turn for step in self.steps for turn in step.turns if any(c.number in new for c in turn.calls)
        )

    @cached_property
    def steps(self) -> list[StepRecord]:
        """Every step of every plan, in the order they were written."""
        return [step for plan in self.plans for step in plan.steps]

    @cached_property
    def calls(self) -> list[CallResult]:
        """Every call that consumed something, plans included, each once."""
        plans = [plan.result for plan in self.plans if plan.result]
        own = [step for step in self.steps if step.reused_from is None]
        return plans + [result for step in own for result in step.results]

    @property
    def calls_without_answer(self) -> Iterator[Failure | Attempt]:
        """Calls that gave no answer and whose servers said what they took all the same."""
        for plan in self.plans:
            yield from plan.calls_without_answer
        for step in self.steps:
            yield from step.calls_without_answer

    @property
    def unmetered_calls(self) -> Iterator[UnmeteredCall]:
        """Calls that were begun and whose tokens nobody reported; those that are under way, and those of
        processes before, included.
        """
        for plan in self.plans:
            yield from plan.unmetered_calls

    @cached_property
    def cost_usd(self) -> Decimal | None:
        """All of it; None if the cost of a call is unknown. Of the calls that were open when a process was lost, only a
        key's ledger knows the cost.
        """
        if self.status == "lost" and not self.account.key_id and self.n_unmetered_calls:
            return None
        known = [call.cost_usd for call in (*self.calls, *self.calls_without_answer)]
        return total([*known, self.lost_usd])

    @cached_property
    def cost_is_bound(self) -> bool:
        """Whether `cost_usd` is the most that it can have been: what one of the calls took is not known. The
        notes of the call, or its error, say why. A lost run's calls that were open are charged all that was held.
        """
        if self.status == "lost" and self.lost_usd:
            return True
        return any(call.cost_is_bound for call in (*self.calls, *self.calls_without_answer))

    @cached_property
    def usage(self) -> Usage:
        """Tokens of every call, those that failed included, as far as they are known."""
        return sum((call.usage for call in (*self.calls, *self.calls_without_answer) if call.usage), Usage())

    @property
    def n_unmetered_calls(self) -> int:
        """Calls whose tokens nobody reported: their streams were cut before the server said. Their tokens
        are in no sum.
        """
        return sum(not call.is_open for call in self.unmetered_calls)

    @property
    def segment_usage(self) -> Usage:
        """Tokens since the client last sent results of tools; all of them where it never did."""
        before = [segment.usage for segment in self.segments if segment.given is not None]
        usage = self.segments[-1].usage if self.status == "waiting" else self.usage
        return usage - before[-1] if before else usage

    @property
    def segment_cost_usd(self) -> Decimal | None:
        """What was spent since then; None: unknown."""
        before = [segment.cost_usd for segment in self.segments if segment.given is not None]
        cost_usd = self.segments[-1].cost_usd if self.status == "waiting" else self.cost_usd
        if not before or cost_usd is None:
            return cost_usd
        return None if before[-1] is None else cost_usd - before[-1]

    @property
    def orchestration(self) -> Usage:
        """Tokens of every call of the newest segment but the answering one."""
        return self.segment_usage - self.answering_usage

    @property
    def answering_usage(self) -> Usage:
        """Tokens of the answering call, or of the newest one that waits for its tools; 0 where it is not known."""
        turns = self.new_turns if self.status == "waiting" else ()
        result = turns[-1].result if turns else self.answering
        return (result.usage if result else None) or Usage()

    @property
    def critical_path_s(self) -> float:
        """How long the run would have taken had every step begun the moment it could.

        A step can begin once it is written and what it reads is there; the longest such chain through the
        answering plan.
        """
        plan = self.answering_plan
        if plan is None:
            return self.wall_s
        ends: list[float] = []
        for step in plan.steps:
            ready = max([step.planned_s, *(ends[read] for read in step.access)])
            took = 0.0 if step.started_s is None or step.ended_s is None else step.ended_s - step.started_s
            ends.append(ready + took)
        decided = [other.ended_s or 0.0 for other in self.plans if other.accepted]
        return max([ends[-1], *decided])


def _number(call: PendingCall) -> int:
    return call.number


class RunRecords(Value, frozen=True):
    """The record of a run, and of the runs inside it: all that is needed to show it or to continue it."""

    record: Record
    inner: Mapping[str, Record] = {}
    """By id."""
    has_content: bool = True
    """False: the texts are not here, only the numbers."""

    def __iter__(self) -> Iterator[Record]:
        yield self.record
        yield from self.inner.values()

    def calls_of(self, record: Record) -> Iterator[CallResult | Failure | Attempt]:
        """The calls of one of these runs that took something; those answered by a run inside it count there."""
        for call in (*record.calls, *record.calls_without_answer):
            if getattr(call, "inner_run", None) not in self.inner:
                yield call

    @property
    def known_usd(self) -> Decimal:
        """What the calls on record took, as far as it is known."""
        costs = (call.cost_usd for record in self for call in self.calls_of(record))
        return sum((cost for cost in costs if cost is not None), Decimal(0))

    def lost_usd(self, paid_usd: Decimal) -> Decimal:
        """What calls took whose ends are not on record, where `paid_usd` is known to be paid for all."""
        return max(self.record.lost_usd, paid_usd - self.known_usd)
