"""What the warm start learns from: plans drawn at random, some of them kept because they were right.

A plan drawn at random can run; whether it is right is left to chance. `WarmStartConfig.rewarded_share` of the examples are, of several
draws, the first whose answer was right, or the cheapest, as the engine and the reward say: one round of expert iteration (STaR,
arXiv 2203.14465). Nobody writes down which worker is right.
"""

import asyncio
import json
import random
import re
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from statistics import mean
from types import MappingProxyType
from typing import Any

from conductor.formats import Format
from conductor.worker import Member
from serving.settings import SettingsError
from training.config import Config, WarmStartConfig
from training.data import Chat, TeamQuestion, drawn, training_questions
from training.plan_runner import PlanRunner
from training.policy_eval import chat, scored

AT_ONCE = 64
"""Examples that are looked for at the same time."""


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and a plan for it."""

    prompt: Chat
    plan: str


def examples(config: Config, runner: PlanRunner) -> list[Example]:
    """The examples of `config`, on questions in an order of their own. Runs the plans of the rewarded ones.

    Args:
        config: with a `warm_start`.
        runner: not used elsewhere while this runs; for one event loop, at whose end it is closed.

    Raises:
        SettingsError: plans cannot be drawn for this pool (`check`).
    """
    warm = config.warm_start
    assert warm is not None, "the caller sees to it"
    check(warm, runner.workers, runner.limits.max_steps)
    even = config.questions.model_copy(update={"composite_share_at_first": None, "distinct": None})
    asked = drawn(config, runner.workers, training_questions(even, warm.examples), "warm start")
    slots = asyncio.Semaphore(AT_ONCE)

    async def tried(number: int, each: TeamQuestion) -> list[DrawnPlan]:
        async with slots:  # each from its own seed, so that it does not matter which is found first
            return await _tried(random.Random(f"{config.seed} warm start {number}"), warm, runner, each)

    async def all_of_them() -> list[list[DrawnPlan]]:
        async with aclosing(runner):
            return await asyncio.gather(*(tried(number, each) for number, each in enumerate(asked)))

    found = asyncio.run(all_of_them())
    rights = success_rates([each for one in found for each in one])
    return [
        Example(chat(runner, each), best(one, rights, first=warm.choose == "first").plan)
        for each, one in zip(asked, found, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class DrawnPlan:
    """A plan that was drawn; and run, if it is one of the rewarded.

    Args:
        plan: its text.
        workers: of its steps.
        right: its answer was.
        usd: what it cost; None: it is not known, or it was not run.
    """

    plan: str
    workers: tuple[str, ...] = ()
    right: bool = False
    usd: float | None = None


def success_rates(tried: Sequence[DrawnPlan]) -> dict[tuple[str, ...], float]:
    """Of the plans with the same workers in the same order, the share that was right."""
    runs: dict[tuple[str, ...], list[bool]] = {}
    for each in tried:
        runs.setdefault(each.workers, []).append(each.right)
    return {workers: mean(rights) for workers, rights in runs.items()}


def best(tried: Sequence[DrawnPlan], rights: Mapping[tuple[str, ...], float], *, first: bool) -> DrawnPlan:
    """Which plan is shown for a question.

    Args:
        tried: at least one, in the order in which they were drawn.
        rights: by workers, how often such plans are right on other questions.
        first: the first right one; else the cheapest right one, and of those whose cost is alike or not known, the one whose
            workers are right most often. The last one drawn where none is right.
    """
    right = [each for each in tried if each.right]
    if not right:
        return tried[-1]
    if first:
        return right[0]
    return min(right, key=lambda each: (each.usd is None, each.usd or 0.0, -rights[each.workers]))


def check(config: WarmStartConfig, workers: Sequence[str], max_steps: int) -> None:
    """Whether plans can be drawn for this pool.

    Args:
        config: what is asked for.
        workers: the names that plans may use.
        max_steps: the most that a plan may have.

    Raises:
        SettingsError: `worker_shares` names somebody else; or `step_shares` has longer plans only.
    """
    if unknown := set(config.worker_shares) - set(workers):
        raise SettingsError(
            f"warm_start.worker_shares has {min(unknown)!r}; the pool has: {', '.join(workers)}."
        )
    if not sum(config.step_shares[:max_steps]):
        raise SettingsError(
            f"warm_start.step_shares has only plans of more than {max_steps} steps, which is the pool's max_steps; "
            "give shorter ones a share."
        )


async def _tried(
    rng: random.Random, config: WarmStartConfig, runner: PlanRunner, asked: TeamQuestion
) -> list[DrawnPlan]:
    """The plans drawn for one question. One that is drawn twice is run once."""
    team = [runner.pool.members[name] for name in asked.workers]
    parts = list(asked.question.facts.get("parts", ()))

    def draw(shares: Mapping[str, float]) -> str:
        return random_plan(rng, config, team, runner.limits.max_steps, runner.conductor.format, parts, shares)

    if rng.random() >= config.rewarded_share:
        return [DrawnPlan(draw(config.worker_shares))]
    tried: dict[str, DrawnPlan] = {}
    for _ in range(config.best_of):
        if (text := draw({})) in tried:
            continue
        score = await scored(runner, asked, text)
        workers, cost = tuple(step.worker for step in score.newest.steps), score.record.cost_usd
        tried[text] = DrawnPlan(text, workers, score.right, None if cost is None else float(cost))
        if score.right and config.choose == "first":
            break
    return list(tried.values())


def random_plan(
    rng: random.Random,
    config: WarmStartConfig,
    team: Sequence[Member],
    max_steps: int,
    format: Format,
    parts: Sequence[str] = (),
    shares: Mapping[str, float] = MappingProxyType({}),
) -> str:
    """A plan that can run, for `team` in its order.

    Args:
        rng: draws it.
        config: how.
        team: who may be used.
        max_steps: no more.
        format: of the text.
        parts: of the question, in short, where its source tells them.
        shares: of the steps, by worker; the rest goes to all alike.
    """
    lengths = config.step_shares[:max_steps]
    (count,) = rng.choices(range(1, len(lengths) + 1), lengths)
    rest = max(0.0, 1 - sum(shares.values())) / len(team)
    weights = [shares.get(member.name, 0.0) + rest for member in team]
    if rng.random() < config.matching_share:
        count = min(len(parts) or 1, max_steps)
    steps: list[dict[str, Any]] = []
    for index in range(count):
        # Where the shares go wholly to workers who are not in this team, it is drawn from alike.
        (worker,) = rng.choices(range(len(team)), weights if any(weights) else None)
        reads = [earlier for earlier in range(index) if rng.random() < config.read_share]
        part = (parts[index] if count == len(parts) else rng.choice(parts)) if parts else ""
        steps.append(_step(config, team, worker, reads, part))
    return written(steps, format, config.fields)


def _step(
    config: WarmStartConfig, team: Sequence[Member], worker: int, reads: list[int], part: str
) -> dict[str, Any]:
    named = team[worker].name if config.names else worker
    return {"worker": named, "subtask": subtask(config, team[worker].card, part), "access": reads}


def subtask(config: WarmStartConfig, card: str, part: str = "") -> str:
    """What a worker with this card is told of this part."""
    head = re.split(r"[,:]|\.(?!\d)", card, maxsplit=1)[0].strip().lower()
    told = config.subtask.replace("{card}", head).replace("{part}", part).strip()
    wanted = ("{card}" in config.subtask and not head) or ("{part}" in config.subtask and not part)
    return config.whole if wanted or not told else told


def written(steps: Sequence[dict[str, Any]], format: Format, fields: Sequence[str]) -> str:
    """Steps as a conductor writes them."""
    if format == "steps":
        return "\n".join(json.dumps({name: step[name] for name in fields}) for step in steps)
    lists = {"model_id": "worker", "subtasks": "subtask", "access_list": "access"}
    return "\n".join(
        f"{label} = {json.dumps([step[name] for step in steps])}" for label, name in lists.items()
    )
