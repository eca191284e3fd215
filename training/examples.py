"""Examples of the warm start and the expected-reward stage. An example is a prompt and a plan, which is drawn
at random or chosen by reward.

A random plan can run, but is right only by chance. A share of the examples (`WarmStartConfig.rewarded_share`)
is therefore chosen among several drawn plans, by running them: the first plan with a right answer, or the
cheapest. This is one round of expert iteration (STaR, arXiv 2203.14465) and needs no labels of the right
worker. With `Config.worth`, every worker answers instead, and the plan uses the worker of the highest worth.
"""

import asyncio
import json
import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from statistics import mean
from typing import Any

from conductor.model.worker import PoolMember
from conductor.plan.plan import Format
from evaluation.cards.families import kind_of
from evaluation.graders import grade
from serving.settings.settings import SettingsError
from training.config import Config
from training.curriculum.questions import RequestQuestion, lesson
from training.data import assign_teams, training_questions, worth_questions
from training.plan_runner import Chat, PlanRunner
from training.policy_eval import score_plan
from training.supervised_config import Choice, WarmStartConfig, WorthConfig
from training.team_question import TeamQuestion
from training.worth import AnsweredQuestion, SoloAnswer, Worths

CONCURRENCY = 64
"""Number of examples that are processed concurrently."""


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and a plan for it.

    Args:
        rewards: the reward of choosing each worker of the team, for each step. It is empty if unknown.
        names_need: whether the `needs` of each step is learned even if the plan's tokens have no weight.
    """

    prompt: Chat
    plan: str
    rewards: Sequence[Sequence[float]] = ()
    names_need: bool = False


@dataclass(frozen=True, slots=True)
class DrawnPlan:
    """Plan that was drawn at random. If it was run, it is a candidate for a rewarded example."""

    plan: str
    workers: tuple[str, ...] = ()
    right: bool = False
    usd: float | None = None


def examples(
    config: Config, runner: PlanRunner, count: int, stage: str, *, with_rewards: bool = False
) -> list[Example]:
    """Return `count` examples on the stage's own questions, and close the runner. Plans of rewarded examples
    are run, and with `with_rewards` every worker of one-step plans.
    """
    warm = config.warm_start
    assert warm is not None, "checked by the caller"
    check(warm, runner.workers, runner.limits.max_steps)
    even = config.questions.model_copy(update={"composite_share_at_first": None, "distinct": None})
    questions = assign_teams(config, runner.workers, training_questions(even, count, stage), stage)
    slots = asyncio.Semaphore(CONCURRENCY)

    async def draw(number: int, each: TeamQuestion) -> list[DrawnPlan]:
        if isinstance(each, RequestQuestion) or config.worth:
            return []
        async with slots:  # each question has its own seed, so that the order does not matter
            rng = random.Random(f"{config.seed} {stage} {number}")
            return await _draw_plans(rng, warm, runner, each)

    async def ask_all(each: TeamQuestion, plan: str) -> dict[str, SoloAnswer]:
        if isinstance(each, RequestQuestion) or plan.count("\n") or not with_rewards or config.worth:
            return {}
        return await answer_all(each)

    async def answer_all(each: TeamQuestion) -> dict[str, SoloAnswer]:
        async with slots:
            return await _solo_answers(runner, each)

    async def learn_worths(judged: Sequence[TeamQuestion], worth: WorthConfig) -> Worths:
        answers = await asyncio.gather(*(answer_all(each) for each in judged))
        answered = [
            AnsweredQuestion(each.question, _family(each), by_worker)
            for each, by_worker in zip(judged, answers, strict=True)
        ]
        return Worths(answered, worth)

    async def draw_all() -> list[Example]:
        async with aclosing(runner):
            draws = await asyncio.gather(*(draw(number, each) for number, each in enumerate(questions)))
            rates = success_rates([plan for plans in draws for plan in plans])
            plans = [best(drawn, rates, warm.choose).plan if drawn else "" for drawn in draws]
            answers = await asyncio.gather(*map(ask_all, questions, plans))
            worths = {
                source: await learn_worths(judged, config.worth)
                for source, judged in worth_questions(config, runner.workers, questions).items()
                if config.worth
            }
        rewards = [{worker: float(answer.right) for worker, answer in each.items()} for each in answers]
        if worths:
            rewards = [_judge(each, worths) for each in questions]
            plans = [
                _solo_plan(runner, warm, each, worth) if worth else ""
                for each, worth in zip(questions, rewards, strict=True)
            ]
        return [
            _best_example(runner, warm, each)
            if isinstance(each, RequestQuestion)
            else Example(runner.prompt(each), plan, _rewards(each, worth) if with_rewards else [])
            for each, plan, worth in zip(questions, plans, rewards, strict=True)
        ]

    return asyncio.run(draw_all())


def _best_example(runner: PlanRunner, config: WarmStartConfig, question: RequestQuestion) -> Example:
    """Return the example of a request's best plan, which is known from how its team was generated."""
    steps, rewards = lesson(question)
    return Example(
        runner.prompt(question), format_plan(steps, runner.conductor.format, config.fields), rewards
    )


async def _solo_answers(runner: PlanRunner, question: TeamQuestion) -> dict[str, SoloAnswer]:
    answers: dict[str, SoloAnswer] = {}
    for name in question.workers:
        record = await runner.run_solo(question, name)
        right = record.failure is None and (await grade(question.question, record.answer)).correct
        usd = None if record.cost_usd is None else float(record.cost_usd)
        answers[name] = SoloAnswer(right, usd)
    return answers


def _judge(question: TeamQuestion, worths: Mapping[str, Worths]) -> dict[str, float]:
    """Return the worth of each worker of the team. For a request, whose best plan is known, return {}."""
    if isinstance(question, RequestQuestion):
        return {}
    worth = worths[question.question.source].judge(question.question, _family(question))
    return {name: worth[name] for name in question.workers}


def _rewards(question: TeamQuestion, worth: Mapping[str, float]) -> list[list[float]]:
    """Return the rewards of a plan's single step in the order of the team, or [] if they are unknown."""
    return [[worth[name] for name in question.workers]] if worth else []


def _solo_plan(
    runner: PlanRunner, config: WarmStartConfig, question: TeamQuestion, worth: Mapping[str, float]
) -> str:
    """Return the plan that uses the worker of the highest worth, with the user's own words as its subtask."""
    name = max(question.workers, key=worth.__getitem__)
    worker = name if config.names else question.workers.index(name)
    needs = kind_of(_family(question))
    step: dict[str, Any] = {"needs": needs, "worker": worker, "subtask": config.whole, "access": []}
    return format_plan([step], runner.conductor.format, config.fields)


def _family(question: TeamQuestion) -> str:
    """Return the question's family, for a recorded one its finer data set."""
    return str(question.question.facts.get("dataset", question.question.family))


def success_rates(plans: Sequence[DrawnPlan]) -> dict[tuple[str, ...], float]:
    """Return the share of right plans for each sequence of workers."""
    rights: dict[tuple[str, ...], list[bool]] = defaultdict(list)
    for plan in plans:
        rights[plan.workers].append(plan.right)
    return {workers: mean(flags) for workers, flags in rights.items()}


def best(plans: Sequence[DrawnPlan], rates: Mapping[tuple[str, ...], float], choose: Choice) -> DrawnPlan:
    """Return the plan to learn, or the last one if none is right. `rates` are shares of right plans by
    workers.
    """
    right = [plan for plan in plans if plan.right]
    if not right:
        return plans[-1]
    match choose:
        case "first":
            return right[0]
        case "cheapest":
            return min(right, key=lambda plan: (plan.usd is None, plan.usd or 0.0, -rates[plan.workers]))
        case "surest":
            return max(right, key=lambda plan: rates[plan.workers])


def check(config: WarmStartConfig, workers: Sequence[str], max_steps: int) -> None:
    """Check that plans can be drawn for this pool. Raise SettingsError for unknown workers or too few steps."""
    if unknown := set(config.worker_shares) - set(workers):
        raise SettingsError(
            f"warm_start.worker_shares: unknown worker {min(unknown)!r}. Choose from: {', '.join(workers)}."
        )
    if not sum(config.step_shares[:max_steps]):
        raise SettingsError(
            f"warm_start.step_shares only has shares for plans with more than {max_steps} steps, which is the pool's max_steps. "
            "Add a share for shorter plans."
        )


async def _draw_plans(
    rng: random.Random, config: WarmStartConfig, runner: PlanRunner, question: TeamQuestion
) -> list[DrawnPlan]:
    """Draw plans for a question. A plan that is drawn twice is run only once."""
    team = runner.members(question)
    parts = list(question.question.facts.get("parts", ()))
    max_steps, format = runner.limits.max_steps, runner.conductor.format
    needs = kind_of(_family(question))
    if rng.random() >= config.rewarded_share:
        shares = config.worker_shares
        return [DrawnPlan(random_plan(rng, config, team, max_steps, format, parts, shares, needs))]
    plans: dict[str, DrawnPlan] = {}
    for _ in range(config.best_of):
        if (text := random_plan(rng, config, team, max_steps, format, parts, needs=needs)) in plans:
            continue
        score = await score_plan(runner, question, text)
        workers, cost = tuple(step.worker for step in score.newest.steps), score.record.cost_usd
        plans[text] = DrawnPlan(text, workers, score.right, None if cost is None else float(cost))
        if score.right and config.choose == "first":
            break
    return list(plans.values())


def random_plan(
    rng: random.Random,
    config: WarmStartConfig,
    team: Sequence[PoolMember],
    max_steps: int,
    format: Format,
    parts: Sequence[str] = (),
    shares: Mapping[str, float] | None = None,
    needs: str = "",
) -> str:
    """Draw a plan that can run for a team in its shown order. `parts` are short texts of the question's
    parts. Steps without `shares` are divided equally. `needs` says what each step needs.
    """
    lengths, shares = config.step_shares[:max_steps], shares or {}
    (count,) = rng.choices(range(1, len(lengths) + 1), lengths)
    rest = max(0.0, 1 - sum(shares.values())) / len(team)
    weights = [shares.get(member.name, 0.0) + rest for member in team]
    if rng.random() < config.matching_share:
        count = min(len(parts) or 1, max_steps)
    steps: list[dict[str, Any]] = []
    for index in range(count):
        # All workers are equally likely if every share belongs to a worker outside this team.
        (worker,) = rng.choices(range(len(team)), weights if any(weights) else None)
        reads = [earlier for earlier in range(index) if rng.random() < config.read_share]
        part = (parts[index] if count == len(parts) else rng.choice(parts)) if parts else ""
        name, card = team[worker].name, team[worker].card
        task = subtask(config, card, part)
        steps.append(
            {"needs": needs, "worker": name if config.names else worker, "subtask": task, "access": reads}
        )
    return format_plan(steps, format, config.fields)


def subtask(config: WarmStartConfig, card: str, part: str = "") -> str:
    """Return the subtask for a worker with this card, and for this part of the question."""
    head = re.split(r"[,:]|\.(?!\d)", card, maxsplit=1)[0].strip().lower()
    text = config.subtask.replace("{card}", head).replace("{part}", part).strip()
    lacks = ("{card}" in config.subtask and not head) or ("{part}" in config.subtask and not part)
    return config.whole if lacks or not text else text


def format_plan(steps: Sequence[dict[str, Any]], format: Format, fields: Sequence[str]) -> str:
    """Return the steps as a conductor writes them: without escapes, as the grammar requires."""
    if format == "steps":
        return "\n".join(
            json.dumps({name: step[name] for name in fields}, ensure_ascii=False) for step in steps
        )
    lists = {"model_id": "worker", "subtasks": "subtask", "access_list": "access"}
    return "\n".join(
        f"{label} = {json.dumps([step[name] for step in steps], ensure_ascii=False)}"
        for label, name in lists.items()
    )
