"""Scripted workers, and helpers that run a team of them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import TypeVar

from conductor.errors import PodiumError
from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.messages import Message
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.usage import FREE, Price, Usage
from conductor.model.worker import PoolMember
from conductor.plan.plan import Format, Plan, Step
from conductor.run.events import AnswerDelta, Event, RunFailed, Terminal
from conductor.run.ledger import BudgetLedger
from conductor.run.lifecycle import open_run
from conductor.run.record import Record
from conductor.run.task import Task
from conductor.run.team import ConductorModel, Team


@dataclass(frozen=True)
class Stall:
    """Send nothing more until the call is closed."""


@dataclass(frozen=True)
class Pause:
    """Yield to all other tasks before the next piece."""

    turns: int = 60


NEVER = Stall()
Piece = str | Delta | Usage | BaseException | asyncio.Event | Pause | Stall | None
"""Text, a delta, the final usage, an error to raise, a gate to wait for, or None to cut the stream."""
Script = Sequence[Piece] | str | Callable[[Call], "Sequence[Piece] | str"]

T = TypeVar("T")
DEAR = Price(Decimal(10), Decimal(100))


class Player:
    """Worker that plays its scripts in turn and repeats the last one."""

    def __init__(
        self, name: str, *scripts: Script, price: Price | None = FREE, closing: asyncio.Event | None = None
    ) -> None:
        self.name, self.price, self._scripts, self._closing = name, price, scripts or ("ok",), closing
        self.calls: list[Call] = []
        self.open_calls = 0
        self.most_open = 0
        self.n_pieces = 0
        self.billed_usd = Decimal(0)
        """Cost of the calls whose usage it has reported."""

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_reply(self.name, f"{self.name}-1", self._deltas(call), self.price)

    async def _deltas(self, call: Call) -> AsyncGenerator[Delta]:  # noqa: C901  (one case a piece)
        script = self._scripts[min(len(self.calls), len(self._scripts) - 1)]
        self.calls.append(call)
        self.open_calls += 1
        self.most_open = max(self.most_open, self.open_calls)
        try:
            pieces = script(call) if callable(script) else script
            usage: Usage | None = None
            output_tokens = 0
            for piece in [pieces] if isinstance(pieces, str) else pieces:
                match piece:
                    case str():
                        output_tokens += 1
                        self.n_pieces += 1
                        yield Delta(piece)
                        await asyncio.sleep(0)
                    case Delta():
                        yield piece
                        if piece.finish:
                            return
                    case Usage():
                        usage = piece
                    case asyncio.Event():
                        await piece.wait()
                    case Pause():
                        await turns(piece.turns)
                    case Stall():
                        await asyncio.Event().wait()
                    case BaseException():
                        raise piece
                    case None:
                        return
            usage = usage or Usage(10, output_tokens)
            self.billed_usd += self.price.of(usage) if self.price else 0
            yield Delta(finish=FinishReason.STOP, usage=usage)
        finally:
            if self._closing is not None:
                await self._closing.wait()
            self.open_calls -= 1


def member(player: Player, **facts: object) -> PoolMember:
    return PoolMember(
        player.name, player, card=f"the {player.name}", price=player.price, worst_price=player.price, **facts
    )  # type: ignore[arg-type]


def team(
    *players: Player, conductor: Player | None = None, format: Format = "steps", **facts: object
) -> Team:
    leader = ConductorModel(member(conductor), format=format, **facts) if conductor else None  # type: ignore[arg-type]
    return Team(leader, {player.name: member(player) for player in players})


def ask_for(text: str = "why is the sky blue?", **facts: object) -> Task:
    return Task((Message.of("user", text),), **facts)  # type: ignore[arg-type]


def line(worker: int | str, subtask: str = "do it", access: Sequence[int] | str = ()) -> str:
    return (
        json.dumps(
            {"worker": worker, "subtask": subtask, "access": access if access == "all" else list(access)}
        )
        + "\n"
    )


def a_plan(*steps: tuple[str, tuple[int, ...]]) -> Plan:
    return Plan(tuple(Step(worker, f"part {index}", access) for index, (worker, access) in enumerate(steps)))


def render_plan(plan: Plan, names: Sequence[str], format: Format) -> str:
    """Render `plan` in the grammar of `format`."""
    numbers = [names.index(step.worker) for step in plan.steps]
    if format == "steps":
        rows = zip(numbers, plan.steps, strict=True)
        return "\n".join(
            json.dumps({"worker": n, "subtask": s.subtask, "access": list(s.access)}, ensure_ascii=False)
            for n, s in rows
        )
    subtasks = json.dumps([step.subtask for step in plan.steps], ensure_ascii=False)
    return f"model_id = {numbers}\nsubtasks = {subtasks}\naccess_list = {[list(step.access) for step in plan.steps]}"


@dataclass
class RunResult:
    events: list[Event]
    record: Record
    ledger: BudgetLedger = field(default_factory=BudgetLedger)
    inner: dict[str, Record] = field(default_factory=dict)

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, AnswerDelta))

    @property
    def terminal(self) -> Event:
        return self.events[-1]

    @property
    def error(self) -> PodiumError:
        assert isinstance(self.events[-1], RunFailed), self.events[-1]
        return self.events[-1].failure.to_error()


async def run_and_check(engine: Team, task: Task) -> RunResult:
    """Run `task` to its end and check the invariants of every run."""
    ledger = BudgetLedger(task.budget)
    async with open_run(engine, task, ledger=ledger) as run:
        events = [event async for event in run.events()]
        record = run.record
        inner = {each.id: each for each in run.records if each is not record}
    assert [event for event in events if isinstance(event, Terminal)] == [events[-1]]
    assert all(a.at_s <= b.at_s for a, b in pairwise(events))
    assert ledger.holds == []
    check_everything_closed(engine)
    return RunResult(events, record, ledger, inner)


def check_everything_closed(engine: Team) -> None:
    """Assert that no task and no worker call is left open."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, others
    everyone = [*engine.pool.values(), *([engine.conductor.member] if engine.conductor else [])]
    assert [who.name for who in everyone if who.worker.open_calls] == []  # type: ignore[attr-defined]


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
