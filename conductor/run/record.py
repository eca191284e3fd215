"""The record of a run. Responses, log lines, the store, evaluation and training read it.

It results from the run's events (`fold.py`), so that it is up to date while the run is active. It contains
everything that is needed to continue the run (`moves.py`). `codec.py` encodes it as JSON.
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
"""Version of the record's schema."""
RunStatus = Literal["running", "waiting", "detached", "finished", "failed", "cancelled", "lost", "expired"]
"""State of a run.

- `waiting`: the run waits for tool results from its client.
- `detached`: the process has left the run, and another process continues it.
- `lost`: the process of the run ended, and no other process continues it. The store sets it, not an event.
- `expired`: the run waited too long for its client. The store sets it, not an event.
"""


def _version() -> int:
    """Return the version. A factory is used because msgspec writes its default to the JSON, but omits plain defaults."""
    return VERSION


class Account(Value, frozen=True):
    """Owner of a run: ids of the API key and of its team, or "" if there is none."""

    key_id: str = ""
    team_id: str = ""

    @property
    def tenant(self) -> str:
        """The team, or the key itself if it has no team. Empty if keys are off."""
        return self.team_id or self.key_id


NO_ACCOUNT = Account()
NOTHING_USD = Decimal(0)


class Record(DefaultingValue, frozen=True, dict=True):
    """Complete record of one run."""

    id: str
    task: Task
    created: float
    """Unix time."""
    workers: tuple[str, ...] = ()
    """Names of the workers that its plans may use, in the order in which the conductor sees them."""
    parent: CallSite | None = None
    """Step of an outer run that this run answers. None if this is not an inner run."""
    owner: str = ""
    """Id of the process that executes the run."""
    trace_id: str | None = None
    version: Annotated[int, msgspec.Meta(le=VERSION)] = msgspec.field(default_factory=_version)
    """Version of the record's schema."""
    seq: int = 0
    """Number of the newest event."""
    status: RunStatus = "running"
    plans: tuple[PlanRecord, ...] = ()
    answer: str = ""
    """The complete answer. Empty if the run is not complete. Incomplete text is in the steps."""
    finish: FinishReason | None = None
    failure: Failure | None = None
    wall_s: float = 0.0
    """Seconds from the start of the run to its newest event. While the answer streams, to the newest piece of the
    answer, with a resolution of 0.1 s."""
    answer_began_s: float | None = None
    """Seconds from the start of the run to the first piece of the answer."""
    account: Account = NO_ACCOUNT
    """The account that requested the run and may read it."""
    cached_from: str = ""
    """Id of the run whose answer was served from the cache. Empty if the run called models."""
    segments: tuple[Segment, ...] = ()
    """One segment per suspension: what happened up to it, and the client's reply."""
    lost_usd: Decimal = NOTHING_USD
    """Cost of calls whose ends earlier processes did not record. `unmetered_calls` contains these calls."""

    def __post_init__(self) -> None:
        # Skip the general check if possible, because a record is copied for each event. A status is always a
        # shared literal.
        is_empty = self.account is not NO_ACCOUNT and self.account == NO_ACCOUNT
        if is_empty or not self.wall_s or (self.lost_usd is not NOTHING_USD and not self.lost_usd):
            DefaultingValue.__post_init__(self)

    @property
    def shown(self) -> str:
        """Text that the client receives: the answer, or the text that accompanies its tool calls if the run waits."""
        return self.segments[-1].text if self.status == "waiting" else self.answer

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """Tool calls that the run waits for."""
        return self.calls_of_tools(self.segments[-1].calls) if self.status == "waiting" else ()

    def calls_of_tools(self, numbers: Collection[int]) -> tuple[PendingCall, ...]:
        """Return the tool calls with these numbers."""
        every = (call for step in self.steps for turn in step.turns for call in turn.calls)
        return tuple(
            sorted({c.number: c for c in every if c.number in numbers}.values(), key=lambda call: call.number)
        )

    @property
    def may_call_tools(self) -> bool:
        """True if the run can have tool calls: it has tools, or it has waited for tool results before."""
        return bool(self.task.tools or self.segments)

    @property
    def n_tool_calls(self) -> int:
        """Number of tool calls so far. Calls are numbered from 0, so this is also the number of the next one."""
        return 1 + max((c.number for s in self.steps for t in s.turns for c in t.calls), default=-1)

    @property
    def model(self) -> str:
        """The requested model name."""
        return self.task.model

    @property
    def rounds(self) -> int:
        """Number of rounds that have begun."""
        return max((plan.round + 1 for plan in self.plans), default=0)

    @property
    def fallback(self) -> str | None:
        """Reason why one worker answered alone, or None if a plan was executed."""
        return next((plan.why for plan in self.plans if plan.source == "fallback"), None)

    @cached_property
    def last_answer_plan(self) -> PlanRecord | None:
        """The newest plan that has produced an answer."""
        return next((plan for plan in reversed(self.plans) if plan.is_answered), None)

    @cached_property
    def answering_plan(self) -> PlanRecord | None:
        """The plan whose last step is the answer.

        It is the newest plan that has produced an answer. If there is none, it is the newest valid plan with
        steps.
        """
        runs = [plan for plan in self.plans if plan.steps and plan.rejection is None and plan.failure is None]
        return self.last_answer_plan or (runs[-1] if runs else None)

    @property
    def answering(self) -> CallResult | None:
        """The call whose output is the answer.

        If the run waits, it is the call in which the answering step made new tool calls, or None if only other
        steps did.
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
        """Turns whose tool calls the client first received with the last suspension."""
        earlier_numbers = {number for segment in self.segments[:-1] for number in segment.calls}
        new = set(self.segments[-1].calls) - earlier_numbers if self.segments else set[int]()
        return tuple(
            turn for step in self.steps for turn in step.turns if any(c.number in new for c in turn.calls)
        )

    @cached_property
    def steps(self) -> list[StepRecord]:
        """All steps of all plans, in the order in which they were written."""
        return [step for plan in self.plans for step in plan.steps]

    @cached_property
    def calls(self) -> list[CallResult]:
        """All calls that have a result, including the conductor's. Reused steps are not counted again."""
        plans = [plan.result for plan in self.plans if plan.result]
        own = [step for step in self.steps if step.reused_from is None]
        return plans + [result for step in own for result in step.results]

    @property
    def calls_without_answer(self) -> Iterator[Failure | Attempt]:
        """Calls without an answer that used tokens or money."""
        for plan in self.plans:
            yield from plan.calls_without_answer
        for step in self.steps:
            yield from step.calls_without_answer

    @property
    def unmetered_calls(self) -> Iterator[UnmeteredCall]:
        """Calls whose usage was never reported, including open calls and calls of earlier processes."""
        for plan in self.plans:
            yield from plan.unmetered_calls

    @cached_property
    def cost_usd(self) -> Decimal | None:
        """Total cost, or None if the cost of a call is unknown.

        If a process was lost, only the ledger of the API key knows the cost of its open calls.
        """
        if self.status == "lost" and not self.account.key_id and self.n_unmetered_calls:
            return None
        costs = [call.cost_usd for call in (*self.calls, *self.calls_without_answer)]
        return total([*costs, self.lost_usd])

    @cached_property
    def cost_is_bound(self) -> bool:
        """True if `cost_usd` is an upper bound because the usage of a call is unknown.

        The call's notes or its error give the reason. Open calls of a lost run are charged in full.
        """
        if self.status == "lost" and self.lost_usd:
            return True
        return any(call.cost_is_bound for call in (*self.calls, *self.calls_without_answer))

    @cached_property
    def usage(self) -> Usage:
        """Known token usage of all calls, including failed calls."""
        return sum((call.usage for call in (*self.calls, *self.calls_without_answer) if call.usage), Usage())

    @property
    def n_unmetered_calls(self) -> int:
        """Number of calls that ended without reported usage. Their tokens are not part of `usage`."""
        return sum(not call.is_open for call in self.unmetered_calls)

    @property
    def segment_usage(self) -> Usage:
        """Token usage since the client last sent tool results, or of the whole run if it never did."""
        before = [segment.usage for segment in self.segments if segment.given is not None]
        usage = self.segments[-1].usage if self.status == "waiting" else self.usage
        return usage - before[-1] if before else usage

    @property
    def segment_cost_usd(self) -> Decimal | None:
        """Cost since the client last sent tool results, or of the whole run if it never did. None if unknown."""
        before = [segment.cost_usd for segment in self.segments if segment.given is not None]
        cost_usd = self.segments[-1].cost_usd if self.status == "waiting" else self.cost_usd
        if not before or cost_usd is None:
            return cost_usd
        return None if before[-1] is None else cost_usd - before[-1]

    @property
    def orchestration(self) -> Usage:
        """Token usage since the client last sent tool results, without the call that answers."""
        return self.segment_usage - self.answering_usage

    @property
    def answering_usage(self) -> Usage:
        """Token usage of the call that answers. If the run waits for tools, usage of the newest call that called
        them. Zero if unknown.
        """
        turns = self.new_turns if self.status == "waiting" else ()
        result = turns[-1].result if turns else self.answering
        return (result.usage if result else None) or Usage()

    @property
    def critical_path_s(self) -> float:
        """Duration of the run if every step had begun as early as possible.

        A step can begin once it is written and all outputs that it reads are complete. The duration ends with the
        last step of the answering plan, or when the conductor accepts the answer, if that is later.
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


class RunRecords(Value, frozen=True):
    """Records of a run and of its inner runs: everything that is needed to show or continue the run."""

    record: Record
    inner: Mapping[str, Record] = {}
    """Inner runs by id."""
    has_content: bool = True
    """False if the texts were removed, so that only the numbers remain."""

    def __iter__(self) -> Iterator[Record]:
        yield self.record
        yield from self.inner.values()

    def calls_of(self, record: Record) -> Iterator[CallResult | Failure | Attempt]:
        """Yield the billed calls of one of these runs. A call that an inner run has answered is not yielded,
        because the calls of the inner run are counted.
        """
        for call in (*record.calls, *record.calls_without_answer):
            if getattr(call, "inner_run", None) not in self.inner:
                yield call

    @property
    def known_usd(self) -> Decimal:
        """Total of the known costs of the recorded calls."""
        costs = (call.cost_usd for record in self for call in self.calls_of(record))
        return sum((cost for cost in costs if cost is not None), Decimal(0))

    def lost_usd(self, paid_usd: Decimal) -> Decimal:
        """Return the cost of calls that were paid but not recorded.

        Args:
            paid_usd: total amount that was paid for the run and its inner runs.
        """
        return max(self.record.lost_usd, paid_usd - self.known_usd)
