"""Generated runs that can be cut after any event, and the process that continues them: `python -m tests.conductor.continuing FILE`.

What the conductor writes and what workers answer follows from a case's number and the prompt alone, so another process gets the
same for the same question, and an answer shows every word that went into it.
"""

import asyncio
import hashlib
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from conductor.errors import WorkerUnavailable
from conductor.model.usage import Price, Usage
from conductor.model.worker import Call
from conductor.run.codec import dump, load
from conductor.run.events import Event
from conductor.run.lifecycle import open_run, resume_run
from conductor.run.record import Record, RunRecords
from conductor.run.run import Run
from conductor.run.task import Task
from conductor.run.team import Team
from tests.conductor.team import Piece, Player, ask_for, line, member, team

PRICE = Price(Decimal(1), Decimal(2))
ACCEPT = '{"accept": true}'


def prompt_of(call: Call) -> str:
    return "\n".join(f"{message.role}: {message.text}" for message in call.messages)


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


class Scribe(Player):
    """Writes plans: several steps, one that cannot run, the same again, or an acceptance, as the prompt has it."""

    def __init__(self, case: int) -> None:
        super().__init__("boss", self._write, price=PRICE)
        self._case = case

    def _write(self, call: Call) -> list[Piece]:
        prompt = prompt_of(call)
        chance = random.Random(f"{self._case} {prompt}")
        n_workers = prompt.split("The team:\n")[1].split("\nuser:")[0].count("\n   (")
        usage = Usage(len(prompt), 20)
        if "The team answered" in prompt:
            earlier = next(message.text for message in call.messages if message.role == "assistant")
            how = chance.choice(["accept", "same", "other"])
            if how != "other" and earlier.startswith("{"):
                return [ACCEPT if how == "accept" else earlier, usage]
        steps: list[Piece] = []
        for index in range(chance.randint(1, 3)):
            reads = [read for read in range(index) if chance.random() < 0.6]
            reads = list(range(index)) if index and not reads else reads
            steps.append(line(chance.randrange(n_workers), f"part {index}", reads))
        if chance.random() < 0.3:
            steps.append(line(0, "read ahead", [7]))
        return [*steps, usage]


class Clerk(Player):
    """Answers with its name and a digest of all it was shown."""

    def __init__(self, case: int, name: str, *, is_broken: bool) -> None:
        super().__init__(name, self._answer, price=PRICE)
        self._case, self._is_broken = case, is_broken

    def _answer(self, call: Call) -> list[Piece]:
        if self._is_broken:
            return [WorkerUnavailable("It is down.", worker=self.name)]
        return [f"{self.name} ", "saw ", digest(self._case, prompt_of(call)), Usage(len(prompt_of(call)), 3)]


def case_of(number: int) -> tuple[Team, Task]:
    """The team and the task of a case."""
    chance = random.Random(f"case {number}")
    clerks = [Clerk(number, name, is_broken=chance.random() < 0.15) for name in "abc"]
    made = team(*clerks, conductor=Scribe(number))
    pool = {clerk.name: member(clerk, max_output_tokens=50) for clerk in clerks}
    task = ask_for(rounds=chance.choice([1, 1, 2, 3]), depth=chance.choice([0, 0, 1]), max_steps=3)
    return Team(made.conductor, pool), task


@dataclass
class Ended:
    """How a run ended, and the calls that were made for it: who was asked what, and how often."""

    status: str
    answer: str
    failure: str
    cost_usd: str
    calls: Counter[str] = field(default_factory=Counter[str])
    snapshots: list[Any] = field(default_factory=list)
    has_cancelled: bool = False

    @property
    def outcome(self) -> tuple[str, str, str]:
        return self.status, self.answer, self.failure


def calls_of(team: Team) -> Counter[str]:
    everyone = [*team.pool.values(), *([team.conductor.member] if team.conductor else [])]
    return Counter(
        f"{who.name} {digest(prompt_of(call))}"
        for who in everyone
        for call in who.worker.calls  # type: ignore[attr-defined]
    )


def finished_calls(records: RunRecords) -> Counter[str]:
    """The calls that had ended, as the records tell them."""
    found: list[str] = []
    for record in records:
        for plan in record.plans:
            done = [step for step in plan.steps if step.status == "done" and step.reused_from is None]
            if plan.result and plan.failure is None and not plan.stopped:
                done.insert(0, plan)  # type: ignore[arg-type]
            found += [
                f"{held.worker} {digest(prompt_of(Call(held.prompt)))}"
                for held in done
                if held.result.inner_run is None
            ]
    return Counter(found)


async def end_of(run: Run, team: Team) -> Ended:
    async for _ in run.events():
        pass
    record = run.record
    failure = record.failure.code if record.failure else ""
    cancelled = any(step.status in ("cancelled", "not_needed") for each in run.records for step in each.steps)
    return Ended(
        record.status, record.answer, failure, str(record.cost_usd), calls_of(team), has_cancelled=cancelled
    )


async def run_whole(number: int) -> Ended:
    """A case from its begin to its end, with what was on record after every event."""
    made, task = case_of(number)
    records: dict[str, Record] = {}
    snapshots: list[Any] = []

    def keep(record: Record, _: int, __: Event) -> None:
        records[record.id] = record
        inner = {id: each for id, each in records.items() if each.parent is not None}
        snapshots.append(dump(RunRecords(next(iter(records.values())), inner)))

    async with open_run(made, task, f"wf_{number}", journal=keep) as run:
        ended = await end_of(run, made)
    ended.snapshots = snapshots
    return ended


async def run_on(number: int, snapshot: Any) -> Ended:
    """A case from a snapshot to its end."""
    made, _ = case_of(number)
    async with resume_run(made, load(RunRecords, snapshot), owner="another process") as run:
        return await end_of(run, made)


def main() -> None:
    for row in map(json.loads, Path(sys.argv[1]).read_text().splitlines()):
        ended = asyncio.run(run_on(row["case"], row["records"]))
        print(json.dumps({**vars(ended), "calls": dict(ended.calls)}))


if __name__ == "__main__":
    main()
