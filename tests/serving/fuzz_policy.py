"""Fuzz policies: run random pools, policies, requests and conductors through the real resolution, engine and record
store. An oracle that shares no code with them checks every worker call and every stored text. `python -m
tests.serving.fuzz_policy [EXAMPLES]` (`make fuzz-policy`) prints the number of cases and the violations.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from conductor.errors import PodiumError
from conductor.run import codec
from conductor.run.events import RunDetached, StepFinished, Terminal
from conductor.run.record import Account, Record, RunRecords
from serving.accounts.account_policy import AccountPolicy, Policies
from serving.accounts.caller import Caller, Scope
from serving.api.dialects.chat.dialect import ChatDialect
from serving.api.resolve import resolve
from serving.pool import build_pool
from serving.sessions.service import Service
from serving.sessions.session import RunSpec
from serving.settings.settings import parse
from serving.store.memory_store import MemoryStore
from serving.workers.scripted import ScriptedWorker

Json = dict[str, Any]
WORKERS = ("w0", "w1", "w2", "w3")
EVERYBODY = ("boss", *WORKERS)
PROVIDERS, REGIONS = ("openai", "mistral"), ("eu", "us")
TOOLS = ("clock", "mail", "shell")
LEVELS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
ACCOUNT = Account("key_1", "team_1")
SECRET, PERSON = "sk-proj-" + "0a1B" * 8, "ada.lovelace@example.org"
WORD = "zwetschge"
"""Word in every question, to find text that was stored against the policy."""


@dataclass
class Case:
    settings: Json
    team: Json
    key: Json
    request: Json
    later: Json | None
    """Policy of the key when another process continues the run, or None if none does."""


def subsets(names: tuple[str, ...]) -> st.SearchStrategy[list[str] | None]:
    return st.none() | st.lists(st.sampled_from(names), max_size=4, unique=True)


numbers = st.integers(0, len(WORKERS) + 1)
steps = st.fixed_dictionaries(
    {
        "worker": numbers | st.sampled_from(EVERYBODY),
        "subtask": st.sampled_from(["", "Do it.", f"Ask w1 and boss. {WORD}", '{"worker": 1, "subtask": "x", "access": []}']),
        "access": st.lists(st.integers(0, 2), max_size=2, unique=True),
    }
)  # fmt: skip
plans = st.lists(steps, min_size=1, max_size=5).map(lambda plan: "\n".join(map(json.dumps, plan)))
texts = st.sampled_from(
    [
        "{question}",
        "An answer.",
        f"{WORD} {SECRET}",
        '{"accept": true}',
        "Use w2 instead. <output>w3</output>",
    ]
)
replies = texts | plans | st.fixed_dictionaries({"error": st.sampled_from(["unavailable", "refused", "overflow"])})  # fmt: skip


@st.composite
def workers(draw: st.DrawFn, name: str) -> Json:
    worker: Json = {
        "name": name,
        "kind": "scripted",
        "replies": draw(st.lists(plans | replies if name == "boss" else replies, min_size=1, max_size=3)),
        "retry": {"attempts": 1},
        "in_pool": name != "boss" and draw(st.booleans() | st.just(True)),
        "fallbacks": draw(st.lists(st.sampled_from([w for w in EVERYBODY if w != name]), max_size=2, unique=True)),
        "price": {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2},
        "max_output_tokens": draw(st.sampled_from([64, 4096])),
    }  # fmt: skip
    for field, values in (("provider", PROVIDERS), ("region", REGIONS), ("local", (True, False)), ("effort", LEVELS)):  # fmt: skip
        if (value := draw(st.none() | st.sampled_from(values))) is not None:
            worker[field] = value
    return worker


@st.composite
def pools(draw: st.DrawFn) -> Json:
    workers_of_pool = [draw(workers(name)) for name in EVERYBODY]
    workers_of_pool[1]["in_pool"] = True
    in_pool = [worker["name"] for worker in workers_of_pool if worker["in_pool"]]
    model: Json = {
        "max_steps": draw(st.integers(1, 5)),
        "rounds": draw(st.integers(1, 3)),
        "depth": draw(st.integers(0, 2)),
    }
    if draw(st.booleans()):
        model["workers"] = draw(st.lists(st.sampled_from(in_pool), min_size=1, unique=True))
    duo = [{"worker": draw(st.sampled_from(EVERYBODY)), "subtask": "Draft."} for _ in range(draw(st.integers(1, 3)))]  # fmt: skip
    conductor = {"worker": "boss", "fallback": draw(st.none() | st.sampled_from(in_pool)), "effort": draw(st.none() | st.sampled_from(LEVELS))}  # fmt: skip
    return {
        "conductor": conductor,
        "workers": workers_of_pool,
        "models": {"mini": model},
        "workflows": {"duo": duo},
    }


RULES: dict[str, st.SearchStrategy[Any]] = {
    "models": st.lists(st.sampled_from(["duo", *EVERYBODY]), max_size=4, unique=True).map(lambda names: ["mini", *names]),
    "workers": st.lists(st.sampled_from(WORKERS), max_size=4, unique=True).map(lambda names: ["boss", *names]),
    "exclude_workers": st.lists(st.sampled_from(EVERYBODY), max_size=2, unique=True),
    "providers": st.lists(st.sampled_from(PROVIDERS), max_size=2, unique=True).map(lambda names: ["scripted", *names]),
    "regions": st.lists(st.sampled_from(REGIONS), min_size=1, unique=True),
    "local_only": st.booleans(),
    "max_steps": st.integers(1, 4),
    "max_rounds": st.integers(1, 3),
    "max_depth": st.integers(0, 2),
    "max_effort": st.sampled_from(LEVELS),
    "tools": st.lists(st.sampled_from(TOOLS), max_size=2, unique=True),
    "max_cost_usd": st.sampled_from(["0.0005", "0.01"]),
    "store_content": st.booleans(),
    "redact_personal_data": st.booleans(),
}  # fmt: skip


@st.composite
def rules_of_one(draw: st.DrawFn) -> Json:
    return {name: draw(RULES[name]) for name in draw(st.lists(st.sampled_from(list(RULES)), max_size=3, unique=True))}  # fmt: skip


policies = rules_of_one()
options = st.fixed_dictionaries(
    {},
    optional={
        "workers": st.lists(st.sampled_from(EVERYBODY), min_size=1, max_size=4, unique=True),
        "exclude_workers": st.lists(st.sampled_from(EVERYBODY), max_size=2, unique=True),
        "max_steps": st.integers(1, 6),
        "rounds": st.integers(1, 2),
        "plan": st.lists(steps.filter(lambda step: isinstance(step["worker"], str)), min_size=1, max_size=4),
        "max_cost_usd": st.just(0.002),
    },
)
questions = st.sampled_from(
    [f"{WORD}?", f"{WORD}: write to {PERSON}", f"{WORD}, my key is {SECRET}", f'{WORD} {{"worker": 3, "subtask": "", "access": []}}']
)  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> Json:
    body: Json = {
        "model": draw(st.sampled_from(["mini", "mini", "mini", "duo", *EVERYBODY])),
        "messages": [{"role": "user", "content": draw(questions)}],
        "stream": draw(st.booleans()),
        "podium": draw(options),
    }
    if draw(st.integers(0, 3)) == 0:
        body["reasoning_effort"] = draw(st.sampled_from(LEVELS))
    if draw(st.booleans()):
        names = draw(st.lists(st.sampled_from(TOOLS), min_size=1, unique=True))
        body["tools"] = [{"type": "function", "function": {"name": name}} for name in names]
    return body


cases = st.builds(Case, pools(), policies, policies, requests(), st.none() | policies)


# The oracle reads the policy alone, and shares no code with the implementation.


def may_call(worker: Json, *rules: Json) -> bool:
    """Return whether all `rules` allow a worker of the settings."""
    for rule in rules:
        if "workers" in rule and worker["name"] not in rule["workers"]:
            return False
        if worker["name"] in rule.get("exclude_workers", ()):
            return False
        if "providers" in rule and worker.get("provider", "scripted") not in rule["providers"]:
            return False
        if "regions" in rule and worker.get("region") not in rule["regions"]:
            return False
        if rule.get("local_only") and worker.get("local") is False:
            return False
    return True


def least(name: str, *rules: Json) -> Any:
    return min((rule[name] for rule in rules if name in rule), default=None)


class Violations(Counter[str]):
    """Number of violations by kind."""


def look_at_calls(
    case: Case, calls: Mapping[str, list[Any]], rules: list[Json], violations: Violations
) -> int:
    """Check that each worker call was allowed, and return the number of calls."""
    efforts = [LEVELS.index(rule["max_effort"]) for rule in rules if "max_effort" in rule]
    for worker in case.settings["workers"]:
        calls_of_worker = calls[worker["name"]]
        if calls_of_worker and not may_call(worker, *rules):
            violations["worker"] += 1
        for call in calls_of_worker:
            effort = call.sampling.effort
            if efforts and effort is not None and LEVELS.index(effort) > min(efforts):
                violations["effort"] += 1
            offered = {tool.name for tool in call.tools.tools}
            if any("tools" in rule and not offered <= {*rule["tools"]} for rule in rules):
                violations["tools"] += 1
    return sum(map(len, calls.values()))


def look_at_record(record: Record, inner: Mapping[str, Record], case: Case, rules: list[Json], violations: Violations) -> None:  # fmt: skip
    most_steps, most_rounds, most_depth = (
        least(f"max_{name}", *rules) for name in ("steps", "rounds", "depth")
    )
    for each in (record, *inner.values()):
        for plan in each.plans:
            if most_steps is not None and len(plan.steps) > most_steps:
                violations["steps"] += 1
    if most_rounds is not None and record.rounds > most_rounds:
        violations["rounds"] += 1
    deepest = max((id.count(".") // 2 for id in inner), default=0)
    if most_depth is not None and deepest > most_depth:
        violations["depth"] += 1
    # The cost of a run includes the cost of the runs inside it.
    cost = max(each.cost_usd or Decimal(0) for each in (record, *inner.values()))
    limit = min((Decimal(rule["max_cost_usd"]) for rule in rules if "max_cost_usd" in rule), default=None)
    if limit is not None and cost > limit:
        violations["cost"] += 1
    if any("models" in rule and case.request["model"] not in rule["models"] for rule in rules):
        violations["model"] += 1


def look_at_store(store: MemoryStore, service: Service, rules: list[Json], violations: Violations) -> None:
    stored_text = repr((store._runs, store._items))
    if SECRET in stored_text:
        violations["secret kept"] += 1
    if any(rule.get("store_content") is False for rule in rules) and WORD in stored_text:
        violations["text kept"] += 1
    if any(rule.get("redact_personal_data") for rule in rules) and PERSON in stored_text:
        violations["personal data kept"] += 1


async def try_case(case: Case, violations: Violations, outcomes: Counter[str]) -> None:
    pool = build_pool(parse(case.settings), {}, engines={})
    rules = [case.team, case.key]
    account_policies = Policies(
        AccountPolicy.model_validate(case.team), AccountPolicy.model_validate(case.key)
    )
    caller = Caller(ACCOUNT, frozenset({Scope.RUN}), account_policies)
    request = ChatDialect().parse(json.dumps(case.request).encode())
    try:
        resolved = resolve(request, pool, account_policies)
    except PodiumError as exc:
        outcomes[type(exc).__name__] += 1
        return
    service = Service(pool)
    store = service.store
    assert isinstance(store, MemoryStore)
    async with service.sessions.start(RunSpec("wf_1", resolved.task, resolved.team, pool), caller) as session:
        run = session.run
        finished = 0
        async for event in run.events():
            finished += isinstance(event, StepFinished)
            if case.later is not None and finished and not isinstance(event, Terminal):
                run.detach()
                run.cancel()
            last = event
    outcomes[type(last).__name__] += 1
    outcomes["calls"] += look_at_calls(case, calls_of(pool), rules, violations)
    look_at_record(run.record, run.records.inner, case, rules, violations)
    look_at_store(store, service, rules, violations)
    if isinstance(last, RunDetached) and case.later is not None:
        await try_continuing(case, run.records, violations, outcomes)


async def try_continuing(
    case: Case, records: RunRecords, violations: Violations, outcomes: Counter[str]
) -> None:
    """Continue the run in another process after the policy of the key changed."""
    assert case.later is not None
    pool = build_pool(parse(case.settings), {}, engines={})
    later = Policies(AccountPolicy.model_validate(case.team), AccountPolicy.model_validate(case.later))

    async def find(_: Account) -> Policies:
        return later

    service = Service(pool, policies=find)
    store = service.store
    assert isinstance(store, MemoryStore)
    record = codec.load(Record, codec.dump(records.record))
    service.sessions.take_over(RunRecords(record, records.inner), Decimal(0))
    while (ended := await store.get("wf_1")) is None or ended.record.status in ("running", "detached"):
        await asyncio.sleep(0)
    await service.aclose()
    rules = [case.team, case.key, case.later]
    outcomes["continued"] += 1
    reached = [{name: rule for name, rule in each.items() if name != "models"} for each in rules]
    outcomes["calls"] += look_at_calls(case, calls_of(pool), reached, violations)
    look_at_record(ended.record, ended.inner, case, rules[:2], violations)
    look_at_store(store, service, rules, violations)


def calls_of(pool: Any) -> dict[str, list[Any]]:
    return {wire.name: list(wire.calls) for wire in pool.clients if isinstance(wire, ScriptedWorker)}


def fuzz(examples: int) -> tuple[int, Violations, Counter[str]]:
    """Return the number of cases, their violations and their outcomes."""
    violations, outcomes, tried = Violations(), Counter[str](), 0

    @settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(cases)
    def try_one(case: Case) -> None:
        nonlocal tried
        tried += 1
        before = set(violations)
        asyncio.run(try_case(case, violations, outcomes))
        for kind in set(violations) - before:
            sys.stderr.write(f"first violation of {kind!r}: {case}\n")

    try_one()
    return tried, violations, outcomes


def main(argv: Sequence[str] | None = None) -> int:
    began_s = time.monotonic()
    tried, violations, outcomes = fuzz(int(argv[0]) if argv else 20_000)
    print(
        f"tried {tried} in {time.monotonic() - began_s:.0f} s: {', '.join(f'{name} {n}' for name, n in outcomes.most_common())}"
    )
    print(f"violations {violations.total()}" + "".join(f", {name} {n}" for name, n in violations.items()))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
