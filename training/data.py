"""What is asked of whom, in which order: the rows that a run is trained on. All of it follows from the config.

A run sees every row once: the rows are written out in the order of the steps, so that a resumed run goes on where it stood.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.errors import EvaluationError
from evaluation.questions import Question
from evaluation.sources import load
from evaluation.synthetic.operations import FAMILIES
from evaluation.synthetic.questions import Split, questions
from serving.settings import SettingsError
from training.config import Config, QuestionsConfig
from training.jsonl_questions import read

Chat = list[dict[str, str]]
STAGES = 20
"""In so many steps a share grows from its first value to its last."""


@dataclass(frozen=True, slots=True)
class TeamQuestion:
    """A question and the workers that may be used for it, in the order in which the conductor is shown them."""

    question: Question
    workers: tuple[str, ...]


def training_questions(config: QuestionsConfig, count: int) -> list[Question]:
    """`count` questions in the order in which they are asked; composite ones as often as the config says at that point.

    Raises:
        SettingsError: the file of a `jsonl` source, or a set of `also`, cannot be used; or the synthetic families are unknown or
            hold too few questions.
    """
    rng = random.Random(f"mix {config.seed}")
    sets = [(round(each.share * count), _named(each.train, each.max_chars)) for each in config.also]
    others = [question for size, found in sets for question in _so_many(found, size, rng)]
    asked = _of_source(config, count - len(others))
    for place, question in zip(
        sorted(rng.sample(range(count), len(others))), rng.sample(others, len(others)), strict=True
    ):
        asked.insert(place, question)
    _tell_apart(asked)
    return asked


def _tell_apart(asked: Sequence[Question]) -> None:
    """An answer is graded by its question's id, so one id must never be two questions'."""
    seen: dict[str, Question] = {}
    for question in asked:
        if seen.setdefault(question.id, question) != question:
            raise SettingsError(
                f"questions: two different ones have the id {question.id!r}; rename one, or the file that it is named after."
            )


def _of_source(config: QuestionsConfig, count: int) -> list[Question]:
    distinct = min(config.distinct or count, count)
    found = read(config.path) if config.path else _synthetic(config, distinct)
    found = found[:distinct] if config.distinct else found
    asked: list[Question] = []
    rng = random.Random(f"order {config.seed}")
    while len(asked) < count:
        asked += found if not asked and not config.path else rng.sample(found, len(found))
    return asked[:count]


def drawn(config: Config, pool: Sequence[str], asked: Sequence[Question], salt: str) -> list[TeamQuestion]:
    """A pool for each question: its team, or so many of it as the config says, in a random order.

    Raises:
        SettingsError: a team has a worker that the pool has not.
    """
    rng = random.Random(f"{config.seed} {salt}")
    return [
        TeamQuestion(question, tuple(_team(config, pool, question, rng, config.pool.workers_per_question)))
        for question in asked
    ]


def _team(
    config: Config, pool: Sequence[str], question: Question, rng: random.Random, most: int | None
) -> list[str]:
    team = config.pool.teams.get(question.source, pool)
    if unknown := set(team) - set(pool):
        raise SettingsError(
            f"pool.teams.{question.source} has {min(unknown)!r}; the pool has: {', '.join(pool)}."
        )
    return rng.sample(list(team), min(most or len(team), len(team)))


def held_out(config: Config, pool: Sequence[str]) -> list[TeamQuestion]:
    """Questions for measuring, the whole team each, in a random order."""
    rng = random.Random(f"{config.seed} held out")
    found = held_out_questions(config, config.held_out) if config.held_out else []
    return [TeamQuestion(question, tuple(_team(config, pool, question, rng, None))) for question in found]


def held_out_questions(config: Config, count: int) -> list[Question]:
    """Questions that no training sees. Of the synthetic ones half are composite, where training has composite ones.

    Raises:
        SettingsError: the source is a file and there is none of questions held out; or they have a question in common.
    """
    if config.questions.path and not config.questions.held_out_path:
        raise SettingsError(
            "held_out needs questions that training never sees: name a file of them in questions.held_out_path, or set held_out to 0."
        )
    rng, others = random.Random("held out"), list[Question]()
    for each in config.questions.also:
        taught = {question.id for question in _named(each.train, each.max_chars)}
        found = _named(each.held_out, each.max_chars)
        if seen := next((question.id for question in found if question.id in taught), None):
            raise SettingsError(
                f"questions.also: {seen} is in train and in held_out; with recorded questions, say ?part=train and ?part=test."
            )
        others += _so_many(found, round(each.share * count), rng)
    if config.questions.path:
        return _held_out_of_file(config.questions)[: count - len(others)] + others
    share = 0.5 if config.questions.composite_share else 0.0
    return _skills(config.questions, 1_000_003, count - len(others), share, "held_out") + others


def _held_out_of_file(config: QuestionsConfig) -> list[Question]:
    taught = {text for question in read(str(config.path)) for text in (question.id, question.text)}
    found = read(str(config.held_out_path))
    for question in found:
        if taught & {question.id, question.text}:
            raise SettingsError(
                f"questions: {question.id!r} of {config.held_out_path} is in {config.path} too; take it out of one of them."
            )
    return found


def _named(name: str, max_chars: int | None) -> list[Question]:
    try:
        found = load(name)
    except EvaluationError as exc:
        raise SettingsError(f"questions.also: {exc.message}") from exc
    kept = [question for question in found if max_chars is None or len(question.text) <= max_chars]
    if not kept:
        raise SettingsError(f"questions.also: {name} has no question of at most {max_chars} characters.")
    return kept


def _so_many(found: Sequence[Question], count: int, rng: random.Random) -> list[Question]:
    """`count` of them at random; each as often as the others where there are too few."""
    asked: list[Question] = []
    while len(asked) < count:
        asked += rng.sample(found, len(found))
    return asked[:count]


def _synthetic(config: QuestionsConfig, count: int) -> list[Question]:
    """The composite share in stages, none twice over all of them."""
    last, first = config.composite_share, config.composite_share_at_first
    shares = [last] if first is None else [first + (last - first) * k / (STAGES - 1) for k in range(STAGES)]
    made: dict[str, Question] = {}
    for stage, share in enumerate(shares):
        wanted = count * (stage + 1) // len(shares)
        seed = config.seed * 1000 + stage
        for question in _skills(config, seed, 2 * (wanted - len(made)) + 100, share, "train"):
            if len(made) < wanted:
                made.setdefault(question.text, question)
    if len(made) < count:
        raise SettingsError(
            f"The families give only {len(made)} different questions; set questions.distinct to that."
        )
    return list(made.values())


def _skills(config: QuestionsConfig, seed: int, count: int, share: float, split: Split) -> list[Question]:
    try:
        return questions(seed, count, share, config.families or FAMILIES, split=split)
    except ValueError as exc:
        raise SettingsError(f"questions.families: {exc}.") from exc
