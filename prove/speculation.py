"""What asking the likeliest worker before the plan is there would gain (docs/decisions/0063): `python -m prove.speculation`.

In one process and over scripted workers, so it knows nothing of servers, prices and machines that are in use. `Guess` is a
trial, not a part of Podium: it holds no budget and writes no record.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from statistics import median

from conductor.model.call import Call
from conductor.model.messages import Message
from conductor.model.pool_member import PoolMember
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from conductor.run.events import AnswerDelta, RunFailed, StepPlanned
from conductor.run.lifecycle import open_run
from conductor.run.plan_writer import ConductorModel
from conductor.run.task import Task
from conductor.run.team import Team
from serving.workers.scripted import TOKEN, ScriptedWorker

PLAN = '{ "worker" : 0 , "subtask" : "" , "access" : [ ] }\n'
PLAN_S = 0.4
"""As 20 tokens at 50 a second."""
FIRST_TOKENS_S = (0.1, 0.5, 2.0)
ROUNDS = 5
QUESTION = (Message.of("user", "Why is the sky blue?"),)


class Guess:
    """`worker`, which may be asked before its step is known: the call is kept where the step's is the same."""

    def __init__(self, worker: Worker) -> None:
        self.name, self._worker = worker.name, worker
        self._left = AsyncExitStack()
        self._early: asyncio.Task[Reply] | None = None

    def begin(self) -> None:
        """Ask it the user's own words now."""
        opening = self._left.enter_async_context(self._worker.open(Call(QUESTION)))
        self._early = asyncio.create_task(opening)

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`."""
        if self._early is not None and call.messages == QUESTION:
            yield await self._early
            return
        async with self._worker.open(call) as reply:
            yield reply

    async def aclose(self) -> None:
        """Leave what was begun, kept or not."""
        if self._early is not None:
            self._early.cancel()
            await asyncio.wait([self._early])
        await self._left.aclose()


class Hasty:
    """A conductor beside whose call a guess begins."""

    def __init__(self, worker: Worker, begin: Callable[[], None]) -> None:
        self.name, self._worker, self._begin = worker.name, worker, begin

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """See `Worker.open`."""
        self._begin()
        return self._worker.open(call)

    async def aclose(self) -> None:
        """Nothing to close."""


async def measure_alone_s(first_token_s: float) -> float:
    """Seconds until the first token of the worker, asked directly."""
    began_s = time.monotonic()
    async with _worker("asked", first_token_s).open(Call(QUESTION)):
        return time.monotonic() - began_s


async def measure_planned_s(first_token_s: float, guessed: int | None) -> tuple[float, float]:
    """Seconds until the first word of a run whose plan asks worker 0, while worker `guessed` is asked at once; and until the
    plan's step is there.

    Raises:
        RuntimeError: the run failed.
    """
    workers = [Guess(_worker(name, first_token_s)) for name in ("asked", "other")]
    leader: Worker = ScriptedWorker("conductor", [PLAN], tokens_per_s=len(TOKEN.findall(PLAN)) / PLAN_S)
    if guessed is not None:
        leader = Hasty(leader, workers[guessed].begin)
    conductor = ConductorModel(PoolMember("conductor", leader))
    team = Team(conductor, {worker.name: PoolMember(worker.name, worker) for worker in workers})
    began_s, planned_s = time.monotonic(), 0.0
    try:
        async with open_run(team, Task(QUESTION, stream=True)) as run:
            async for event in run.events():
                match event:
                    case StepPlanned():
                        planned_s = time.monotonic() - began_s
                    case AnswerDelta():
                        return time.monotonic() - began_s, planned_s
                    case RunFailed(failure=failure):
                        raise RuntimeError(failure.message)
                    case _:
                        pass
    finally:
        for worker in workers:
            await worker.aclose()
    raise RuntimeError("the run ended without a word")


def _worker(name: str, first_token_s: float) -> ScriptedWorker:
    return ScriptedWorker(name, ["Because blue light is scattered most."], delay_s=first_token_s)


async def main() -> None:
    """Print, for each first token, the ratios of each way to the worker alone and to the later of worker and plan."""
    print("worker s | over alone: planned, right guess, wrong guess | over the later: the same three")
    for first_token_s in FIRST_TOKENS_S:
        rounds: list[list[float]] = []
        for _ in range(ROUNDS):
            alone_s = await measure_alone_s(first_token_s)
            times = [await measure_planned_s(first_token_s, guessed) for guessed in (None, 0, 1)]
            over_later = [word_s / max(alone_s, planned_s) for word_s, planned_s in times]
            rounds.append([word_s / alone_s for word_s, _ in times] + over_later)
        ratios = [f"{median(each):.2f}" for each in zip(*rounds, strict=True)]
        print(f"{first_token_s:g} | {', '.join(ratios[:3])} | {', '.join(ratios[3:])}")


if __name__ == "__main__":
    asyncio.run(main())
