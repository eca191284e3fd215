"""Measure a policy, and each worker alone, on questions that it was not trained on."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any, TypeVar

from rich.progress import track

from evaluation.graders import grade
from training.generation import Completion, generate
from training.plan_runner import PlanRunner
from training.reward import RewardTerms, Score, score
from training.team_question import TeamQuestion

BATCH = 64
"""Number of plans that are generated together."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PolicyMetrics:
    """Figures for the questions of one source, as shares unless stated otherwise. Plans are run as written,
    without repair.

    Args:
        parsed: the share that is answered with a plan that can run, and no text around it.
        single: the share of right answers among synthetic questions that take one skill, or None if there are
            none.
        composite: the share of right answers among synthetic questions that take two skills, or None if there
            are none.
        right_access: the share of composite questions that are right with at least two steps, of which the
            last reads another, or None if there are none.
    """

    right: float
    parsed: float
    single: float | None
    composite: float | None
    right_access: float | None
    steps: float
    questions: int

    def asdict(self) -> dict[str, float | None]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SoloAccuracy:
    """Shares of one source's questions that each worker, and that any worker, answers correctly alone."""

    workers: dict[str, float]
    oracle: float


def score_policy(
    model: Any,
    tokenizer: Any,
    runner: PlanRunner,
    questions: Sequence[TeamQuestion],
    max_tokens: int,
    temperature: float = 0.0,
) -> list[Score]:
    """Write and run a plan for every question, return their scores, and close the runner."""
    prompts = [runner.prompt(each) for each in questions]
    completions: list[Completion] = []
    model.eval()
    for start in track(range(0, len(prompts), BATCH), description="writing plans", transient=True):
        part = prompts[start : start + BATCH]
        completions += generate(model, tokenizer, part, max_tokens, temperature)
    model.train()

    async def run() -> list[Score]:
        async with aclosing(runner):
            scores = (
                score_plan(runner, each, c.text, ended=c.ended)
                for each, c in zip(questions, completions, strict=True)
            )
            return await asyncio.gather(*scores)

    return asyncio.run(run())


def sources(questions: Sequence[TeamQuestion]) -> list[str]:
    """Return the different sources of the questions. Each has its own workers, and so figures."""
    return list(dict.fromkeys(each.question.source for each in questions))


def by_source(
    questions: Sequence[TeamQuestion], values: Sequence[T]
) -> dict[str, list[tuple[TeamQuestion, T]]]:
    groups: dict[str, list[tuple[TeamQuestion, T]]] = {source: [] for source in sources(questions)}
    for each, value in zip(questions, values, strict=True):
        groups[each.question.source].append((each, value))
    return groups


def metrics_by_source(questions: Sequence[TeamQuestion], scores: Sequence[Score]) -> dict[str, PolicyMetrics]:
    return {
        source: summarize(*zip(*pairs, strict=True)) for source, pairs in by_source(questions, scores).items()
    }


async def score_plan(runner: PlanRunner, question: TeamQuestion, text: str, *, ended: bool = True) -> Score:
    """Run the plan `text` and score it. `ended` is False if the text was truncated."""
    terms = RewardTerms(runner.conductor.format, runner.limits.max_steps)
    record = await runner.run(question, [text], ended=ended)
    return await score(question.question, record, text, list(question.workers), terms, ended=ended)


def summarize(questions: Sequence[TeamQuestion], scores: Sequence[Score]) -> PolicyMetrics:
    by_parts: dict[int, list[Score]] = {0: [], 1: [], 2: []}
    for each, s in zip(questions, scores, strict=True):
        by_parts[min(len(each.question.facts.get("chain", ())), 2)].append(s)
    single, composite = by_parts[1], by_parts[2]
    lengths = [len(s.newest.steps) for s in scores if s.parsed]
    reads = [len(s.newest.steps) > 1 and bool(s.newest.steps[-1].access) for s in composite]
    return PolicyMetrics(
        right=mean(s.right for s in scores),
        parsed=mean(s.parsed for s in scores),
        single=_share([s.right for s in single]),
        composite=_share([s.right for s in composite]),
        right_access=_share([s.right and read for s, read in zip(composite, reads, strict=True)]),
        steps=mean(lengths) if lengths else 0.0,
        questions=len(scores),
    )


def solo_accuracy(runner: PlanRunner, questions: Sequence[TeamQuestion]) -> dict[str, SoloAccuracy]:
    """Run each worker alone on its questions, and return its accuracy by source. The runner is closed."""

    async def right(worker: str, each: TeamQuestion) -> bool:
        record = await runner.run_solo(each, worker)
        return record.failure is None and (await grade(each.question, record.answer)).correct

    async def every() -> list[dict[str, bool]]:
        # One question at a time, because workers may be other people's machines.
        async with aclosing(runner):
            return [{name: await right(name, each) for name in each.workers} for each in questions]

    groups = by_source(questions, asyncio.run(every()))
    return {source: _solo([rights for _, rights in pairs]) for source, pairs in groups.items()}


def _solo(answers: Sequence[dict[str, bool]]) -> SoloAccuracy:
    names = sorted({name for rights in answers for name in rights})
    return SoloAccuracy(
        {name: mean(rights[name] for rights in answers if name in rights) for name in names},
        mean(any(rights.values()) for rights in answers),
    )


def _share(flags: Sequence[bool]) -> float | None:
    return mean(flags) if flags else None
