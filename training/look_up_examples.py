"""Examples of the look-up lesson: matching words with cards, and writing what a request needs."""

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
    """Return the examples of the look-up lesson.

    For each team, there are three kinds of examples in this order:

    * Look-ups: a few words, and the worker whose card fits them.
    * Namings: a request of one part, the field that it needs, and the worker for this field.
    * Requests of several parts, and their best plan.

    The prompt of a look-up only has the cards, as the server shows them, and no message of a user. Each plan
    ends after the number of its last worker.
    """
    lesson_config = config.look_up
    assert lesson_config is not None, "checked by the caller"
    questions = look_ups(
        config.seed, lesson_config.examples, lesson_config.per_team, lesson_config.made_up_share
    )
    examples: list[Example] = []
    for start in range(0, len(questions), lesson_config.per_team):
        group = questions[start : start + lesson_config.per_team]
        seed, team, longest = f"{config.seed}/{start}", group[0].team, config.questions.longest_request
        examples += [_look_up_example(runner, each) for each in group]
        examples += [
            _naming_example(runner, each)
            for each in namings(seed, lesson_config.named_per_team, team, longest)
        ]
        examples += [
            _example_of_parts(runner, each)
            for each in namings_of_parts(seed, lesson_config.of_parts_per_team, team, longest)
        ]
    return examples


def _look_up_example(runner: PlanRunner, question: RequestQuestion) -> Example:
    rng, (part,) = random.Random(question.question.id), question.request.parts
    worker = rng.choice(best_workers(part, question.team))
    cards = [turn for turn in runner.prompt(question) if turn["role"] == "system"]
    return Example(
        cards, f'{{"needs": {json.dumps(question.request.text, ensure_ascii=False)}, "worker": {worker}'
    )


def _naming_example(runner: PlanRunner, question: RequestQuestion) -> Example:
    """Return an example for a request of one part: its field, and the worker if it is clear which one can do
    it.
    """
    (part,) = question.request.parts
    needs = json.dumps(field_of(part.domain), ensure_ascii=False)
    team = question.team
    able = [] if part.domain in team.disputed else best_workers(part, team)
    worker = random.Random(question.question.id).choice(able) if able else ""
    return Example(runner.prompt(question), f'{{"needs": {needs}, "worker": {worker}', names_need=True)


def _example_of_parts(runner: PlanRunner, question: RequestQuestion) -> Example:
    """Return an example with the best plan up to its last worker. All its `needs` and workers are learned."""
    steps, _ = lesson(question)
    plan = format_plan(steps, "steps", ["needs", "worker", "subtask", "access"])
    return Example(runner.prompt(question), plan[: plan.rindex(', "subtask"')], names_need=True)
