"""The driver of one run: the only code that decides about whole plans.

A plan (given, or written by the conductor, repaired once, else one worker answers by itself), its steps, and for more than one
round the conductor's verdict on the outcome.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from conductor.errors import DeadlineExceeded, InvalidPlan, NoPlan, PodiumError, WorkerError, internal_error
from conductor.model.messages import Message
from conductor.model.pool_member import PoolMember
from conductor.model.refusals import Refusals
from conductor.model.usage import Usage
from conductor.model.worker import FinishReason
from conductor.plan.plan import Plan, Step
from conductor.run.event_log import Outbox
from conductor.run.events import (
    AnswerDelta,
    CallQueued,
    CallResult,
    Event,
    PlanEnded,
    PlanStarted,
    RunFailed,
    RunFinished,
    Source,
    StepPlanned,
)
from conductor.run.ledger import Ledger
from conductor.run.plan_run import PlanRun, RunContext
from conductor.run.plan_writer import ConductorModel, PlanStream
from conductor.run.task import Task
from conductor.run.team_worker import TeamWorker

if TYPE_CHECKING:
    from conductor.run.run import Run
    from conductor.run.team import Team


SELF_CARD = "this whole team, asked anew: for a part that deserves a plan of its own"


SAME_AGAIN = "The conductor wrote the same plan again, which accepts its answer."


@dataclass(slots=True)
class Outcome:
    """A round's answer, the text of the plan that made it, and its steps."""

    answered: CallResult
    plan_text: str
    steps: tuple[Step, ...] = ()


async def hold_while_same(steps: AsyncIterable[Step], earlier: tuple[Step, ...]) -> AsyncIterator[Step]:
    """`steps`, held back for as long as they are those of `earlier`; none where they are the same to the end."""
    held: list[Step] = []
    is_same = bool(earlier)
    async for step in steps:
        held.append(step)
        is_same = is_same and len(held) <= len(earlier) and step == earlier[len(held) - 1]
        if not is_same:
            for each in held:
                yield each
            held, is_same = [], False
    if len(held) < len(earlier):
        for each in held:
            yield each


class RoundLoop:
    """Drives one run to its terminal event."""

    def __init__(
        self,
        engine: "Team",
        task: Task,
        members: dict[str, PoolMember],
        run: "Run",
        outbox: Outbox,
        ledger: Ledger,
    ) -> None:
        self._engine, self._run, self._outbox, self._ledger = engine, run, outbox, ledger
        self._refusals = task.sampling.refusals or Refusals()  # an inner run has those of the outer one
        self._began = time.monotonic()
        sampling = replace(task.sampling, refusals=self._refusals)
        if task.deadline_s is not None:
            sampling = replace(sampling, deadline_at_s=self._began + task.deadline_s)
        self._task = replace(task, sampling=sampling)
        self._asked_for, self._members = members, members | self._itself()
        if engine.conductor is not None and engine.conductor.shuffle:
            self._members = dict(random.sample(list(self._members.items()), len(self._members)))
        self._plans = 0
        self._kept: CallResult | None = None

    def now_s(self) -> float:
        return time.monotonic() - self._began

    def _itself(self) -> dict[str, PoolMember]:
        """The whole team as one more worker, where the task allows depth."""
        if self._task.depth < 1 or self._task.plan is not None:
            return {}
        worker = TeamWorker(self._engine, self._task, self._ledger)
        return {worker.name: PoolMember(worker.name, worker, SELF_CARD, prepaid=True, sees_images=True)}

    async def drive(self) -> None:
        """Run to the terminal event. The one catcher of what nobody foresaw."""
        deadline = asyncio.timeout(self._task.deadline_s)
        try:
            async with deadline:
                answered = await self._rounds()
        except Exception as exc:  # noqa: BLE001  (one of the two catchers, design section 6)
            if self._kept is None or self._outbox.begun or self._task.strict:
                late = isinstance(exc, TimeoutError) and deadline.expired()
                error = exc if isinstance(exc, PodiumError) else self._late() if late else internal_error(exc)
                self._note(RunFailed(self.now_s(), error))
                return
            answered = self._kept  # a further round failed: the answer before it stands, the record has both
            await self._show(answered)
        self._note(RunFinished(self.now_s(), answered.output, answered.finish or FinishReason.STOP))

    def _late(self) -> DeadlineExceeded:
        message = f"The answer was not there within {self._task.deadline_s:g} s. Raise podium.deadline_s, or ask for less."
        return DeadlineExceeded(message, param="podium.deadline_s", deadline_s=self._task.deadline_s)

    def _note(self, event: Event) -> None:
        self._run.record = self._run.record.after(event)
        self._outbox.put(event)

    async def _rounds(self) -> CallResult:
        rounds = 1 if self._task.plan is not None or self._task.plan_only else self._task.rounds
        outcome = await self._first(live=rounds == 1)
        for round in range(1, rounds):
            self._kept = outcome.answered
            revised = await self._revised(outcome, round, live=round == rounds - 1)
            if revised is None:
                await self._show(outcome.answered)
                break
            outcome = revised
        return outcome.answered

    async def _show(self, answered: CallResult) -> None:
        """An answer that was kept back until the conductor had read it."""
        await self._outbox.put_delta(AnswerDelta(self.now_s(), answered.output, answered.reasoning))

    async def _first(self, *, live: bool) -> Outcome:
        """The first round: the given plan; or the conductor's, repaired once; or one worker by itself."""
        if self._task.plan is not None:
            return await self._given(self._task.plan, self._task.plan_source, live=live)
        conductor = self._conductor()
        pool = list(self._members.values())
        prompt = self._engine.prompts.plan(
            conductor.layout, pool, self._task.max_steps, self._task.conversation
        )
        try:
            outcome = await self._written(prompt, "conductor", 0, live=live)
        except InvalidPlan as exc:
            if self._task.strict:
                raise
            why = f"the plan was refused twice, last as {exc.reason}: {exc.message}"
        except WorkerError as exc:
            if exc.step is not None or self._task.strict:
                raise
            why = f"the conductor failed: {type(exc).__name__}: {exc.message}"
        else:
            if outcome is not None:
                return outcome
            why = "the conductor wrote no plan"
        return await self._by_itself(why, live=live)

    async def _by_itself(self, why: str, *, live: bool) -> Outcome:
        """One worker answers the user's own question; the next one, where it fails before it has said a word."""
        names = self._fallbacks()
        for name in names:
            try:
                return await self._given(Plan((Step(name, ""),)), "fallback", live=live, why=why)
            except WorkerError as exc:
                if name == names[-1] or self._outbox.begun:
                    raise
                why = f"{why}; then {name} failed: {type(exc).__name__}"
        raise AssertionError("there is at least one worker")

    async def _revised(self, outcome: Outcome, round: int, *, live: bool) -> Outcome | None:
        """A further round; None keeps the answer, because the conductor accepts it or cannot say otherwise."""
        conductor, pool = self._conductor(), list(self._members.values())
        prompts, task = self._engine.prompts, self._task
        asked = prompts.plan(conductor.layout, pool, task.max_steps, task.conversation)
        prompt = prompts.revise(asked, outcome.plan_text, outcome.answered.output, conductor.layout)
        try:
            return await self._written(prompt, "revision", round, live=live, earlier=outcome.steps)
        except InvalidPlan:
            if self._task.strict:
                raise
            return None  # the record has both refusals
        except WorkerError as exc:
            if exc.step is not None:
                raise
            return None

    async def _written(
        self,
        prompt: list[Message],
        source: Source,
        round: int,
        *,
        live: bool,
        earlier: tuple[Step, ...] = (),
    ) -> Outcome | None:
        """Run a plan that the conductor writes; complain once where it cannot run.

        Args:
            prompt: what it is shown.
            source: who writes it.
            round: from 0.
            live: whether its last step's words go to the client as they come.
            earlier: the steps of the round before; to write them again is to accept their answer.

        Raises:
            InvalidPlan: the second one cannot run either.
            WorkerError: the conductor's has no step, a worker's has one.
        """
        draft = self._draft(prompt, may_accept=round > 0)
        try:
            return await self._conducted(draft, source, round, prompt, live=live, earlier=earlier)
        except InvalidPlan as exc:
            if self._task.strict:
                raise
            written = draft.answered.output if draft.answered else ""
            repair = self._engine.prompts.repair(prompt, written, exc)
        return await self._conducted(
            self._draft(repair, may_accept=round > 0), "repair", round, repair, live=live, earlier=earlier
        )  # fmt: skip

    def _draft(self, prompt: list[Message], *, may_accept: bool) -> PlanStream:
        pool = list(self._members.values())
        conductor, next_index = self._conductor(), self._plans

        def waiting(why: str) -> None:
            self._note(CallQueued(self.now_s(), next_index, None, conductor.member.name, why))

        return PlanStream(
            conductor,
            pool,
            self._task.max_steps,
            prompt,
            self._ledger,
            index=next_index,
            may_accept=may_accept,
            waiting=waiting,
            deadline_at_s=self._task.sampling.deadline_at_s,
            refusals=self._refusals,
        )

    async def _conducted(
        self, draft: PlanStream, source: Source, round: int, prompt: list[Message], *, live: bool, earlier: tuple[Step, ...]
    ) -> Outcome | None:  # fmt: skip
        index = self._begin(source, round, self._conductor().member.name, tuple(prompt))

        def ended() -> Plan | None:
            is_same = draft.plan is not None and draft.plan.steps == earlier
            plan, why = (None, SAME_AGAIN) if is_same else (draft.plan, "")
            self._note(PlanEnded(self.now_s(), index, draft.answered, accepted=plan is None, why=why))
            return plan

        try:
            answered = await self._execute(index, hold_while_same(draft, earlier), ended, live=live)
        except InvalidPlan as exc:
            self._note(PlanEnded(self.now_s(), index, draft.answered, rejected=exc.reason, why=exc.message))
            raise
        except BaseException as exc:
            if (
                self._run.record.plans[index].ended_s is None
            ):  # the writer failed, or was stopped, in mid-text
                error = exc if isinstance(exc, PodiumError) else None
                why = error.message if error else ""
                self._note(PlanEnded(self.now_s(), index, draft.answered, error=error, why=why))
            raise
        if answered is None or draft.plan is None:
            return None
        return Outcome(answered, draft.answered.output if draft.answered else "", draft.plan.steps)

    async def _given(self, plan: Plan, source: Source, *, live: bool, why: str = "") -> Outcome:
        index = self._begin(source, 0, None, ())

        async def steps() -> AsyncIterator[Step]:
            for step in plan.steps:
                yield step

        def ended() -> Plan:
            self._note(PlanEnded(self.now_s(), index, why=why))
            return plan

        answered = await self._execute(index, steps(), ended, live=live)
        assert answered is not None, "a plan has at least one step"
        return Outcome(answered, "")

    async def _execute(
        self, index: int, steps: AsyncIterable[Step], ended: Callable[[], Plan | None], *, live: bool
    ) -> CallResult | None:
        if not self._task.plan_only:
            return await PlanRun(self._scene(), index, live=live).run(steps, ended)
        number = 0
        async for step in steps:
            self._note(StepPlanned(self.now_s(), index, number, step))
            number += 1
        ended()
        return CallResult("", "", "", Usage(), Decimal(0), FinishReason.STOP)

    def _begin(self, source: Source, round: int, worker: str | None, prompt: tuple[Message, ...]) -> int:
        index, self._plans = self._plans, self._plans + 1
        self._note(PlanStarted(self.now_s(), index, round, source, worker, prompt))
        return index

    def _scene(self) -> RunContext:
        return RunContext(
            self._members,
            self._task.conversation,
            self._task.sampling,
            self._ledger,
            self._note,
            self._outbox,
            self.now_s,
        )

    def _conductor(self) -> ConductorModel:
        if self._engine.conductor is None:
            raise NoPlan(
                "No conductor is set up, and the request brings no plan. Set `conductor` in the settings."
            )
        return self._engine.conductor

    def _fallbacks(self) -> list[str]:
        """Who may answer by itself: the settings' choice first; only those who see, where the user shows a picture."""
        names = sorted(self._asked_for, key=lambda name: name != self._engine.fallback)
        seeing = [name for name in names if self._asked_for[name].sees_images]
        return seeing if self._task.shows_pictures and seeing else names
