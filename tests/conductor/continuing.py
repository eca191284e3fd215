"""Reproducible runs that can be cut after any event, and a process that continues them: `python -m
tests.conductor.continuing FILE`. Plans and answers depend only on the case number and the prompt, so another process
reproduces them. Each answer contains a digest of its prompt.
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
from conductor.model.call import Call
from conductor.model.usage import Price, Usage
from conductor.run.codec import dump, load
from conductor.run.events import Event
from conductor.run.lifecycle import open_run, resume_run
from conductor.run.record import Record, RunRecords
from conductor.run.run import Run
from conductor.run.task import Task
from conductor.run.team import Team
from tests.conductor.team import Pause, Piece, Player, ask_for, line, member, team

PRICE = Price(Decimal(1), Decimal(2))
ACCEPT = '{"accept": true}'
CASES = 50


def prompt_of(call: Call) -> str:
    return "\n".join(f"{message.role}: {message.text}" for message in call.messages)


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


class Scribe(Player):
    """Conductor that writes several steps, a plan that cannot run, the same plan again, or an acceptance. In even
    cases it also writes steps whose results no other step reads, with pauses so that they end before the text.
    """

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
        has_unread = self._case % 2 == 0  # no step reads some results
        for index in range(3 if has_unread else chance.randint(1, 3)):
            reads = [read for read in range(index) if chance.random() < (0.3 if has_unread else 0.6)]
            if not reads and not has_unread:
                reads = list(range(index))
            steps.append(line(chance.randrange(n_workers), f"part {index}", reads))
            if has_unread:
                steps.append(Pause())
        if chance.random() < 0.3:
            steps.append(line(0, "read ahead", [7]))
        return [*steps, usage]


class Clerk(Player):
    """Worker that answers with its name and a digest of its prompt."""

    def __init__(self, case: int, name: str, *, is_broken: bool) -> None:
        super().__init__(name, self._answer, price=PRICE)
        self._case, self._is_broken = case, is_broken

    def _answer(self, call: Call) -> list[Piece]:
        if self._is_broken:
            return [WorkerUnavailable("It is down.", worker=self.name)]
        return [f"{self.name} ", "saw ", digest(self._case, prompt_of(call)), Usage(len(prompt_of(call)), 3)]


def case_of(number: int) -> tuple[Team, Task]:
    chance = random.Random(f"case {number}")
    clerks = [Clerk(number, name, is_broken=chance.random() < 0.15) for name in "abc"]
    engine = team(*clerks, conductor=Scribe(number))
    pool = {clerk.name: member(clerk, max_output_tokens=50) for clerk in clerks}
    task = ask_for(rounds=chance.choice([1, 1, 2, 3]), depth=chance.choice([0, 0, 1]), max_steps=3)
    return Team(engine.conductor, pool), task


@dataclass
class Ended:
    """End of a run, and the number of times each worker was called with each prompt."""

    status: str
    answer: str
    failure: str
    known_usd: str
    """Sum of all recorded costs."""
    billed_usd: str
    """Cost of this process's calls."""
    settled: dict[str, str]
    """Results that must never change again: see `digest_calls`."""
    calls: Counter[str] = field(default_factory=Counter[str])
    snapshots: list[Any] = field(default_factory=list)

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


def count_finished_calls(records: RunRecords) -> Counter[str]:
    """Count the calls that the records show as ended."""
    calls: list[str] = []
    for record in records:
        for plan in record.plans:
            entries = [step for step in plan.steps if step.status == "done" and step.reused_from is None]
            if plan.result and plan.failure is None and not plan.stopped:
                entries.insert(0, plan)  # type: ignore[arg-type]
            calls += [
                f"{each.worker} {digest(prompt_of(Call(each.prompt)))}"
                for each in entries
                if each.result.inner_run is None
            ]
    return Counter(calls)


def digest_calls(records: RunRecords) -> dict[str, str]:
    """Return a digest of each recorded call that has ended, by its place."""
    digests: dict[str, str] = {}
    for record in records:
        for plan in record.plans:
            if plan.result is not None:
                digests[f"{record.id} {plan.index}"] = digest(dump(plan.result))
            for step in plan.steps:
                if step.status in ("done", "failed", "not_needed"):
                    ending = (step.status, dump(step.result), dump(step.failure))
                    digests[f"{record.id} {plan.index} {step.index}"] = digest(ending)
    return digests


def sum_known_costs(records: RunRecords) -> Decimal:
    """Sum the recorded costs that are exact, counting each call once."""
    own = [call for record in records for call in record.calls if call.inner_run is None]
    unanswered = [call for record in records for call in record.calls_without_answer]
    return sum(
        (
            call.cost_usd
            for call in (*own, *unanswered)
            if call.cost_usd is not None and not call.cost_is_bound
        ),
        Decimal(0),
    )


def sum_bills(team: Team) -> Decimal:
    everyone = [*team.pool.values(), *([team.conductor.member] if team.conductor else [])]
    return sum((who.worker.billed_usd for who in everyone), Decimal(0))  # type: ignore[attr-defined]


async def end_of(run: Run, team: Team) -> Ended:
    async for _ in run.events():
        pass
    return summarize(run, team)


def summarize(run: Run, team: Team) -> Ended:
    record = run.record
    return Ended(
        record.status,
        record.answer,
        record.failure.code if record.failure else "",
        str(sum_known_costs(run.records)),
        str(sum_bills(team)),
        digest_calls(run.records),
        calls_of(team),
    )


async def run_whole(number: int) -> Ended:
    """Run a case from start to end and snapshot the records after every event."""
    engine, task = case_of(number)
    records: dict[str, Record] = {}
    snapshots: list[Any] = []

    def keep(record: Record, _: int, __: Event) -> None:
        records[record.id] = record
        inner = {id: each for id, each in records.items() if each.parent is not None}
        snapshots.append(dump(RunRecords(next(iter(records.values())), inner)))

    async with open_run(engine, task, f"wf_{number}", journal=keep) as run:
        end = await end_of(run, engine)
    end.snapshots = snapshots
    return end


async def run_until(number: int, n_events: int) -> tuple[Ended, RunRecords]:
    """Run a case and detach after `n_events` events, answer pieces included."""
    engine, task = case_of(number)
    async with open_run(engine, task, f"wf_{number}") as run:
        events = run.events()
        for _ in range(n_events):
            await anext(events, None)
        run.detach()
    return summarize(run, engine), run.records


async def run_on(number: int, snapshot: Any) -> Ended:
    """Continue a case from a snapshot to its end."""
    engine, _ = case_of(number)
    async with resume_run(engine, load(RunRecords, snapshot), owner="another process") as run:
        return await end_of(run, engine)


def faults(whole: Ended, before: RunRecords, end: Ended) -> list[str]:
    """Return what a continued run repeated, lost or changed, compared with the whole run. `before`: the records at
    the cut. The costs on record must be those before the cut plus those billed since.
    """
    faults_found: list[str] = []
    if end.outcome != whole.outcome:
        faults_found.append(f"{end.outcome} instead of {whole.outcome}")
    finished = count_finished_calls(before)
    too_many = finished + Counter(end.calls) - whole.calls
    faults_found += [f"made again: {call}" for call in too_many if call in finished]
    faults_found += [f"changed: {place}" for place, _ in digest_calls(before).items() - end.settled.items()]
    if Decimal(end.known_usd) != sum_known_costs(before) + Decimal(end.billed_usd):
        faults_found.append(
            f"{end.known_usd} known; {sum_known_costs(before)} before, {end.billed_usd} billed since"
        )
    return faults_found


def main() -> None:
    for row in map(json.loads, Path(sys.argv[1]).read_text().splitlines()):
        end = asyncio.run(run_on(row["case"], row["records"]))
        print(json.dumps({**vars(end), "calls": dict(end.calls)}))


if __name__ == "__main__":
    main()
