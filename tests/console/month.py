"""Month of artificial runs of a support desk and a coding agent, with cache hits at their providers, for the page
Costs.
"""

import random
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from decimal import Decimal

from msgspec.structs import replace

from conductor.model.call import Sampling
from conductor.model.messages import Message
from conductor.model.operation import PromptCache, WireOptions
from conductor.model.reply import CallResult, FinishReason
from conductor.model.usage import Price, Usage
from conductor.run.plan_record import PlanRecord, StepRecord
from conductor.run.record import Account, Record, RunRecords
from conductor.run.task import Task
from serving.accounts.caller import DEFAULT_SCOPES, Scope
from serving.accounts.directory import Directory
from serving.database.address import Address
from tests.serving.api.served import Json, Served, scripted, team
from tests.serving.store.stores import replicas
from tests.states import until

DAY_S = 86_400
RATES: dict[str, dict[str, str]] = {
    "claude-sonnet": {"input_usd_per_mtok": "3", "output_usd_per_mtok": "15", "cached_input_usd_per_mtok": "0.3", "cache_write_usd_per_mtok": "3.75"},
    "gpt-5-mini": {"input_usd_per_mtok": "0.25", "output_usd_per_mtok": "2", "cached_input_usd_per_mtok": "0.025"},
    "haiku": {"input_usd_per_mtok": "1", "output_usd_per_mtok": "5", "cached_input_usd_per_mtok": "0.1", "cache_write_usd_per_mtok": "1.25"},
}  # fmt: skip
BASELINE: Json = {"model": "claude-opus", "price": {"input_usd_per_mtok": "5", "output_usd_per_mtok": "25", "cached_input_usd_per_mtok": "0.5"}}  # fmt: skip
KEYS = {"help desk": "support", "chat widget": "support", "coding agent": "engineering", "admin": None}
LEDGER = """INSERT INTO ledger (kind, run_id, key_id, team_id, day, month, worker, amount, exact, above_hold, at_us)
    SELECT 'call', run_id, key_id, team_id, day, 0, worker, cost, 1, 0, 0 FROM run_cost"""
"""Statement that inserts the cost of the runs into the ledger."""
QUESTIONS = (
    "The invoice of October is missing. Where do I find it?",
    "Why does the login fail after the update?",
    "Rename the module and fix its imports.",
    "Write a test for the parser of dates.",
)
FURTHER = ("And on the phone?", "Please do the same for the other one.", "Why?", "Thanks. Shorter, please.")


def month(accounts: list[Account], now_s: float, n: int = 600) -> Iterator[RunRecords]:
    """Yield `n` runs of the last 30 days: conversations of a few turns, with fewer of them at weekends."""
    rng = random.Random(46)
    while n > 0:
        account, model = rng.choice(accounts), rng.choice(("podium-mini", "podium-mini", "podium-ultra"))
        worker, conversation = rng.choice(list(RATES)), f"cv_{rng.getrandbits(96):024x}"
        began_s = now_s - 30 * DAY_S * rng.random()
        if int(began_s // DAY_S) % 7 in (2, 3) and rng.random() < 0.7:
            continue
        length, question = rng.randrange(2_000, 30_000), rng.choice(QUESTIONS)
        cached = 0
        for turn in range(rng.randrange(1, 9)):
            at_s = min(began_s + 90 * turn, now_s - 1)
            source = "conversation" if turn else "conductor"
            question = rng.choice(FURTHER) if turn else question
            yield RunRecords(
                turn_of(n, account, model, worker, conversation, question, (length, cached), source, at_s)
            )
            cached, length, n = length, length + rng.randrange(200, 4_000), n - 1


def turn_of(
    n: int, account: Account, model: str, worker: str, conversation: str, question: str, tokens: tuple[int, int], source: str, at_s: float
) -> Record:  # fmt: skip
    """Return a run with an answer and a plan by the conductor, or by the conversation's worker alone."""
    length, cached = tokens
    written = length - cached if worker != "gpt-5-mini" else 0
    answer = call(
        worker, Usage(length, 350, cached, 0, written), "Here is what I found, and what I would do next."
    )
    step = StepRecord(0, worker, "", (), 0.4, "done", (), answer, 0.5, 1.1, worker, 3.2)
    if source == "conversation":
        why = "Reading this conversation again would cost more than any other worker is expected to gain."
        plan = PlanRecord(0, 0, "conversation", 0.0, None, (), (step,), None, 0.0, why=why)
    else:
        plan = PlanRecord(
            0, 0, "conductor", 0.0, "gpt-5-mini", (), (step,), call("gpt-5-mini", Usage(900, 60), ""), 0.4
        )
    options = WireOptions(prompt_cache=PromptCache(conversation=conversation))
    task = Task((Message.of("user", question),), model=model, sampling=Sampling(options=options))
    return Record(f"wf_{n:032x}", task, at_s, plans=(plan,), status="finished", answer=answer.output, account=account, wall_s=3.3)  # fmt: skip


def call(worker: str, usage: Usage, output: str) -> CallResult:
    price = Price(**{name: Decimal(rate) for name, rate in RATES[worker].items()})
    return CallResult(
        output, worker, worker, usage, price.of(usage), FinishReason.STOP, saved_usd=price.savings(usage)
    )


@asynccontextmanager
async def spent(address: Address) -> AsyncGenerator[tuple[Served, dict[str, str]]]:
    """Serve with a month of runs. Yield the API, and the secrets of its keys by name."""
    directory = Directory(address)
    try:
        secrets, accounts = dict[str, str](), list[Account]()
        for name in ("support", "engineering"):
            await directory.create_team(name)
        for name, owner in KEYS.items():
            scopes = DEFAULT_SCOPES if owner else {Scope.ADMIN}
            key, info = await directory.create_key(name, owner, scopes)
            secrets[name] = key.reveal()
            accounts += [Account(info.id, info.team.id)] if info.team else []
        settings = team(
            workers=[scripted(name, price=rates) for name, rates in RATES.items()],
            workflows={},
            baseline=BASELINE,
        )
        async with replicas(address, settings, n=1, directory=directory) as (router,):
            for run in month(accounts, time.time()):
                await router.records.put(replace(run, record=replace(run.record, owner=router.records.owner)))
            await until(lambda: not list(router.records.waiting()))
            await router.change(LEDGER)
            yield router.api, secrets
    finally:
        await directory.aclose()
