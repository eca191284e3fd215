"""Run a plan while it is still being written.

Every step is a task that awaits the outputs it reads; reads point backwards only, so there is no scheduler. Which step is the
last is known when the text ends: from then on its answer flows out, and steps it cannot reach are cancelled, or never begin.
"""

import asyncio
from collections.abc import AsyncIterable, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from conductor.errors import PodiumError, internal_error
from conductor.model.messages import Message
from conductor.model.pool_member import PoolMember
from conductor.model.worker import Call
from conductor.plan.marks import EchoFilter
from conductor.plan.plan import Plan, Step
from conductor.plan.prompts import OUTPUT, work
from conductor.run.call import OpenCall, open_call
from conductor.run.event_log import Outbox
from conductor.run.events import (
    AnswerDelta,
    CallQueued,
    CallResult,
    Event,
    StepAborted,
    StepFinished,
    StepFirstToken,
    StepOutcome,
    StepPlanned,
    StepStarted,
)
from conductor.run.ledger import Ledger

BLIND_NOTE = "The user's pictures were left out: this worker's settings say that it sees none (sees_images)."


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the steps of a run share.

    Args:
        pool: the members this request may use, by name.
        conversation: the user's.
        sampling: what the user asked of the answer; `messages` is ignored.
        ledger: the run's spending.
        note: takes every event but pieces of the answer.
        outbox: takes those.
        now_s: seconds since the run began.
    """

    pool: Mapping[str, PoolMember]
    conversation: tuple[Message, ...]
    sampling: Call
    ledger: Ledger
    note: Callable[[Event], None]
    outbox: Outbox
    now_s: Callable[[], float]


async def wait_until_done(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until `tasks` have ended, also while we are cancelled ourselves, as a `TaskGroup` does: they may be closing calls."""
    cancelled: asyncio.CancelledError | None = None
    while left := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled:
        raise cancelled


class PlanRun:
    """One plan, from its first decoded step to its last step's output."""

    def __init__(self, scene: RunContext, index: int, *, live: bool) -> None:
        self._scene, self._index, self._live = scene, index, live
        self._steps: list[Step] = []
        self._tasks: list[asyncio.Task[CallResult]] = []
        self._begun: set[int] = set()
        self._last: int | None = None
        self._ended = asyncio.Event()
        self._unneeded: frozenset[int] = frozenset()
        self._waiting: dict[int, list[AnswerDelta]] = {}
        self._showing = asyncio.Lock()

    async def run(self, steps: AsyncIterable[Step], ended: Callable[[], Plan | None]) -> CallResult | None:
        """Run `steps` as they come.

        Args:
            steps: in the plan's order, each checked.
            ended: called when they have ended; the whole plan, or None where there is nothing to run.

        Returns:
            The last step's answer, or None where the plan has none.

        Raises:
            InvalidPlan, WorkerError, BudgetExceeded: whatever `steps` or a step that matters raised. No task is left.
        """
        try:
            async for step in steps:
                self._start(step)
            plan = ended()
            if plan is None:
                return None
            await self._decide(plan)
            await asyncio.wait([self._tasks[-1]])
            return self._tasks[-1].result()
        finally:
            await self._stop()

    def _start(self, step: Step) -> None:
        index = len(self._steps)
        self._steps.append(step)
        self._scene.note(StepPlanned(self._scene.now_s(), self._index, index, step))
        self._tasks.append(asyncio.create_task(self._step(index, step), name=f"step {index} {step.worker}"))

    async def _decide(self, plan: Plan) -> None:
        """The text has ended: drop what nobody needs, and show what the last step has said by now."""
        self._unneeded = frozenset(range(len(self._tasks))) - plan.needed
        for index in self._unneeded:
            self._tasks[index].cancel()
        async with self._showing:
            self._last = len(plan.steps) - 1
            self._ended.set()
            for delta in self._waiting.pop(self._last, []):
                await self._scene.outbox.put_delta(replace(delta, at_s=self._scene.now_s()))
            self._waiting.clear()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        try:
            await wait_until_done(self._tasks)
        finally:
            for index, task in enumerate(self._tasks):
                if not task.cancelled():
                    task.exception()  # looked at, so that asyncio does not complain about it
                elif index not in self._begun:
                    self._lost(index, self._loss(index), None, None)

    async def _step(self, index: int, step: Step) -> CallResult:
        asked: OpenCall | None = None
        self._begun.add(index)
        try:
            outputs = await self._outputs(step)
            prompt = work(self._scene.pool[step.worker], self._scene.conversation, step, self._steps, outputs)
            call = await self._call(index, step, prompt.messages)
            self._scene.note(StepStarted(self._scene.now_s(), self._index, index, prompt.messages))
            echo = EchoFilter(OUTPUT, prompt.mark_key) if prompt.mark_key else None
            async with open_call(self._scene.pool[step.worker], call, self._scene.ledger, echo) as asked:
                asked.reply.notes += self._notes(step)
                self._scene.note(StepFirstToken(self._scene.now_s(), self._index, index, asked.reply.worker))
                async with aclosing(aiter(asked)) as deltas:
                    async for delta in deltas:
                        if self._live and (delta.text or delta.reasoning):
                            await self._show(
                                index, AnswerDelta(self._scene.now_s(), delta.text, delta.reasoning)
                            )
            self._scene.note(StepFinished(self._scene.now_s(), self._index, index, asked.answered))
            return asked.answered
        except asyncio.CancelledError:
            self._lost(index, self._loss(index), None, asked)
            raise
        except PodiumError as exc:
            self._lost(index, StepOutcome.FAILED, exc, asked)
            raise
        except Exception as exc:
            error = internal_error(exc)
            self._lost(index, StepOutcome.FAILED, error, asked)
            raise error from exc

    async def _outputs(self, step: Step) -> dict[int, str]:
        """What `step` reads. Waiting for a task, unlike awaiting it, does not cancel it with us.

        Raises:
            PodiumError: of the step that failed, which it names; the others are not waited for.
        """
        reads = {read: self._tasks[read] for read in step.access}
        if reads:
            done, _ = await asyncio.wait(reads.values(), return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        return {read: task.result().output for read, task in reads.items()}

    async def _call(self, index: int, step: Step, prompt: tuple[Message, ...]) -> Call:
        """A step's call, with what the user asked of the answer.

        Any step may turn out to be the last, so all take the user's sampling. Only `stop` would cut inner work in half: it is
        for the answer alone, so a request that has it lets its steps begin once the plan's text has ended.
        """
        sampling = self._scene.sampling
        if sampling.stop:
            await self._ended.wait()
        return replace(
            sampling, messages=prompt, plan=self._index, step=index, access=step.access,
            stop=sampling.stop if index == self._last else (), read_along=sampling.read_along and self._may_show(index),
            waiting=partial(self._waits, index, step.worker),
        )  # fmt: skip

    def _notes(self, step: Step) -> tuple[str, ...]:
        """What the record says of the prompt, beside the prompt itself."""
        if self._scene.pool[step.worker].sees_images:
            return ()
        shown = any(message.has_image for message in self._scene.conversation)
        return (BLIND_NOTE,) if shown else ()

    def _may_show(self, index: int) -> bool:
        """Whether this step's words may go to the client: the last step's do, and a step before another is not the last."""
        return self._live and index == len(self._steps) - 1

    def _waits(self, index: int, worker: str, why: str) -> None:
        self._scene.note(CallQueued(self._scene.now_s(), self._index, index, worker, why))

    async def _show(self, index: int, delta: AnswerDelta) -> None:
        if self._last not in (None, index):
            return
        async with self._showing:
            if self._last is None:
                self._waiting.setdefault(index, []).append(delta)
            elif self._last == index:
                await self._scene.outbox.put_delta(delta)

    def _loss(self, index: int) -> StepOutcome:
        return StepOutcome.NOT_NEEDED if index in self._unneeded else StepOutcome.CANCELLED

    def _lost(self, index: int, loss: StepOutcome, error: PodiumError | None, asked: OpenCall | None) -> None:
        answered = asked.answered if asked else None
        self._scene.note(StepAborted(self._scene.now_s(), self._index, index, loss, error, answered))
