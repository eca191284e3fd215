"""Small pool for tests of training: two scripted workers and artificial questions."""

from collections.abc import Callable
from typing import Any

from evaluation.questions import Question
from serving.settings.settings import parse
from tests.serving.api.served import plan, scripted, step
from training.caching_worker import CallCache
from training.plan_runner import PlanRunner, training_pool
from training.team_question import TeamQuestion
from training.trl_reward import PlanReward

PRICE = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
EOS = 7
RIGHT, WRONG, NO_PLAN = plan(step(0)), plan(step(1)), "I would ask somebody."


def settings(*workers: Any, **conductor: Any) -> Any:
    mine = workers or (scripted("a", "42", price=PRICE), scripted("b", "41", price=PRICE))
    return parse(
        {
            "conductor": {"worker": "conductor"} | conductor,
            "workers": [scripted("conductor", in_pool=False), *mine],
            "models": {"m": {"max_steps": 2}},
        }
    )


def question(id: str = "q") -> Question:
    return Question(id, f"What is the answer to {id}?", "42", "exact", "test", "none")


def runner(*workers: Any, cache: CallCache | None = None, **conductor: Any) -> Callable[[], PlanRunner]:
    return lambda: PlanRunner(training_pool(settings(*workers, **conductor), {}), "m", cache)


def reward(
    make: Callable[[], PlanRunner] | None = None, workers: tuple[str, ...] = ("a", "b"), **options: Any
) -> PlanReward:
    return PlanReward(make or runner(), two_questions(workers), [EOS], **options)


def two_questions(workers: tuple[str, ...]) -> list[TeamQuestion]:
    """Return two questions of these workers: rows 0 and 1."""
    return [TeamQuestion(question(id), workers) for id in ("q", "r")]


async def rewards(
    scorer: PlanReward, *texts: str, ids: list[int] | None = None, **columns: Any
) -> list[float | None]:
    count = len(texts)
    all_columns = {"row": [0] * count} | columns
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    return await scorer(completions=completions, completion_ids=[ids or [1, EOS]] * count, **all_columns)
