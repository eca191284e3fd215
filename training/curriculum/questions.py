"""Requests and teams as questions for training and measuring. They are generated from a seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from conductor.model.worker import PoolMember
from evaluation.questions import Question
from training.curriculum.materials import HELD_OUT_DOMAINS, Side, load
from training.curriculum.requests import (
    LEARNED_SHARES,
    SHARES,
    Request,
    best_plan,
    draw_request,
    draw_short,
    part_rewards,
)
from training.curriculum.teams import DrawnTeam, draw_team
from training.curriculum.worker import PartWorker, result
from training.team_question import TeamQuestion

SOURCE = "requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestQuestion(TeamQuestion):
    """Question that is a request, with the team that was drawn for it."""

    request: Request
    team: DrawnTeam

    @property
    def is_new(self) -> bool:
        """True if the request is about a domain that training never saw."""
        return any(part.domain in HELD_OUT_DOMAINS for part in self.request.parts)


def request_questions(
    seed: object, count: int, side: Side = "train", per_team: int = 1, longest: int | None = None
) -> list[RequestQuestion]:
    """Return `count` requests as questions, `per_team` in a row, so that the team's cards are read once.
    `longest` limits their characters.
    """
    rng, prefix = random.Random(f"requests {side} {seed}"), f"{SOURCE}/{side}/{seed}"
    questions = _draw(rng, prefix, side, per_team, longest)
    return [next(questions) for _ in range(count)]


def _draw(
    rng: random.Random, prefix: str, side: Side, per_team: int, longest: int | None
) -> Iterator[RequestQuestion]:
    materials, number = load(side), 0
    shares = LEARNED_SHARES if side == "train" else SHARES
    while True:
        team = draw_team(rng, materials)
        for _ in range(per_team):
            request = draw_short(partial(draw_request, rng, materials, team, shares), longest)
            yield question_of(request, team, f"{prefix}/{number}")
            number += 1


def question_of(request: Request, team: DrawnTeam, id: str) -> RequestQuestion:
    """Return `request` as a question to `team`, with a program as each worker."""
    last = len(request.parts) - 1
    domains = ">".join(part.domain for part in request.parts)
    question = Question(
        id,
        request.text,
        result(id, last),
        "exact",
        SOURCE,
        request.kind,
        {"domains": domains},
        earlier=request.turns[:-1],
    )
    members: dict[str, PoolMember] = {}
    for number, mate in enumerate(team.mates):
        name = f"worker-{number}"
        price = mate.price if team.shows_facts else None
        members[name] = PoolMember(
            name,
            PartWorker(name, mate, request, id, price),
            card=mate.card,
            price=price,
            worst_price=price,
            tokens_per_s=mate.tokens_per_s if team.shows_facts else None,
        )
    return RequestQuestion(question, tuple(members), members, request=request, team=team)


def lesson(question: RequestQuestion) -> tuple[list[dict[str, object]], list[tuple[float, ...]]]:
    """Return the steps of the best plan, and each worker's reward in each. Workers are numbers."""
    rng = random.Random(f"plan {question.question.id}")
    steps = best_plan(rng, question.request, question.team)
    plan: list[dict[str, object]] = [
        {
            "needs": step.needs,
            "worker": int(step.worker),
            "subtask": step.subtask,
            "access": list(step.access),
        }
        for step in steps
    ]
    rewards = [
        part_rewards(part, question.team, [int(step.worker) for step in steps[:number]])
        for number, part in enumerate(question.request.parts)
    ]
    return plan, rewards
