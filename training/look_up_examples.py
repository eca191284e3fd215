"""The first lesson's examples: a few words and whose card fits them; whole requests and what they need."""

import json
import random

from training.config import Config
from training.curriculum.look_ups import look_ups
from training.curriculum.materials import field_of
from training.curriculum.namings import namings, namings_of_parts
from training.curriculum.questions import RequestQuestion, lesson
from training.curriculum.requests import best_workers
from training.examples import Example, format_plan
from training.plan_runner import PlanRunner


def look_up_examples(config: Config, runner: PlanRunner) -> list[Example]:
    """The examples of the first lesson: the cards as the server shows them, and the beginning of a plan up to
    the worker's number. No user says anything, which keeps an example short. After those to one team, requests
    whose field is to be named, and others of several parts.
    """
    chosen = config.look_up
    assert chosen is not None, "the caller sees to it"
    drawn = look_ups(config.seed, chosen.examples, chosen.per_team, chosen.made_up_share)
    made: list[Example] = []
    for start in range(0, len(drawn), chosen.per_team):
        group = drawn[start : start + chosen.per_team]
        seed, team, longest = f"{config.seed}/{start}", group[0].team, config.questions.longest_request
        made += [_look_up_example(runner, each) for each in group]
        made += [
            _naming_example(runner, each) for each in namings(seed, chosen.named_per_team, team, longest)
        ]
        made += [
            _example_of_parts(runner, each)
            for each in namings_of_parts(seed, chosen.of_parts_per_team, team, longest)
        ]
    return made


def _look_up_example(runner: PlanRunner, question: RequestQuestion) -> Example:
    rng, (part,) = random.Random(question.question.id), question.request.parts
    worker = rng.choice(best_workers(part, question.team))
    cards = [turn for turn in runner.prompt(question) if turn["role"] == "system"]
    return Example(
        cards, f'{{"needs": {json.dumps(question.request.text, ensure_ascii=False)}, "worker": {worker}'
    )


def _naming_example(runner: PlanRunner, question: RequestQuestion) -> Example:
    """What the request needs; and whom to ask, where somebody can do it and nobody else might."""
    (part,) = question.request.parts
    needs = json.dumps(field_of(part.domain), ensure_ascii=False)
    team = question.team
    able = [] if part.domain in team.disputed else best_workers(part, team)
    worker = random.Random(question.question.id).choice(able) if able else ""
    return Example(runner.prompt(question), f'{{"needs": {needs}, "worker": {worker}', names_need=True)


def _example_of_parts(runner: PlanRunner, question: RequestQuestion) -> Example:
    """The best plan up to its last worker, of which each need and each worker is learned."""
    steps, _ = lesson(question)
    plan = format_plan(steps, "steps", ["needs", "worker", "subtask", "access"])
    return Example(runner.prompt(question), plan[: plan.rindex(', "subtask"')], names_need=True)
