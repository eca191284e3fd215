"""Draw the questions of a run, their order and their teams. The config determines all of them.

A run reads every row once. Rows are in the order of the steps, so that a resumed run continues where it
stopped.
"""

import math
import random
from collections.abc import Sequence

from evaluation import EvaluationError
from evaluation.questions import Question
from evaluation.sources import load
from evaluation.synthetic.operations import FAMILIES
from evaluation.synthetic.questions import Split, questions
from serving.settings.settings import SettingsError
from training.config import AlsoConfig, Config, QuestionsConfig
from training.curriculum.questions import request_questions
from training.jsonl_questions import read_questions
from training.team_cards import measure_teams, write_team_cards
from training.team_question import TeamQuestion

STAGES = 20
"""Number of steps in which the share of composite questions grows from its first value to its last."""


def check(config: Config, pool: Sequence[str]) -> None:
    """Check that question sets, held-out ones too, do not overlap, and that teams and cards fit sources and
    pool. Raise SettingsError otherwise.
    """
    own = config.questions
    sets = [(_load_whole(each.train), _load_whole(each.held_out)) for each in own.also]
    _check_apart(
        [each for train, _ in sets for each in train], [each for _, held_out in sets for each in held_out]
    )
    questions = [each for pair in sets for part in pair for each in part]
    questions += read_questions(own.path) if own.path else []
    questions += _second_file(own.path, own.held_out_path) if own.path and own.held_out_path else []
    # Requests have their own teams.
    sources = {each.source for each in questions} | ({own.source} & {"skills"})
    for field, by_source in (("teams", config.pool.teams), ("cards", config.pool.cards)):
        if unknown := by_source.keys() - sources:
            raise SettingsError(
                f"pool.{field}.{min(unknown)}: no question with this source needs a team. "
                f"Sources: {', '.join(sorted(sources)) or 'none'}."
            )
    for source, team in config.pool.teams.items():
        _check_team(source, team, pool)


def _check_apart(trained: Sequence[Question], held_out: Sequence[Question]) -> None:
    ids = {question.id for question in trained}
    if shared := next((question.id for question in held_out if question.id in ids), None):
        raise SettingsError(
            f"questions.also: the question {shared} is in both train and held_out. "
            "For recorded questions, use ?part=train and ?part=test."
        )


def _check_team(source: str, team: Sequence[str], pool: Sequence[str]) -> None:
    if unknown := set(team) - set(pool):
        raise SettingsError(
            f"pool.teams.{source}: unknown worker {min(unknown)!r}. Choose from: {', '.join(pool)}."
        )


def training_questions(
    config: QuestionsConfig, count: int, stage: str = "grpo"
) -> list[Question | TeamQuestion]:
    """Return `count` questions in training order from all sources, for each stage others. Requests come with
    their own teams.
    """
    rng = random.Random(f"mix {config.seed}")
    sets = [(round(each.share * count), _load_set(each.train, each)) for each in config.also]
    others = [question for size, available in sets for question in _draw(available, size, rng)]
    groups = _groups(_own_questions(config, count - len(others), stage), config.requests_per_team)
    number = len(groups) + math.ceil(len(others) / config.requests_per_team)
    positions = sorted(rng.sample(range(number), number - len(groups)))
    shuffled = rng.sample(others, len(others))
    for position, group in zip(positions, _groups(shuffled, config.requests_per_team), strict=True):
        groups.insert(position, group)
    mix = [question for group in groups for question in group]
    _check_ids([each.question if isinstance(each, TeamQuestion) else each for each in mix])
    return mix


def _groups(
    questions: Sequence[Question | TeamQuestion], size: int
) -> list[Sequence[Question | TeamQuestion]]:
    """Split into groups of `size`, each of which shares a team."""
    return [questions[start : start + size] for start in range(0, len(questions), size)]


def _check_ids(questions: Sequence[Question]) -> None:
    """Check that ids are unique, because an answer is graded by its question's id."""
    by_id: dict[str, Question] = {}
    for question in questions:
        if by_id.setdefault(question.id, question) != question:
            raise SettingsError(
                f"questions: two different questions have the id {question.id!r}. "
                "Rename one of the questions, or one of the files after which they are named."
            )


def _own_questions(config: QuestionsConfig, count: int, stage: str) -> Sequence[Question | TeamQuestion]:
    """Return questions of the config's `source`, without those of `also`."""
    if config.source == "requests":
        per_team, longest = config.requests_per_team, config.longest_request
        return request_questions(f"{config.seed} {stage}", count, "train", per_team, longest=longest)
    distinct = min(config.distinct or count, count)
    available = read_questions(config.path) if config.path else _synthetic(config, distinct)
    available = available[:distinct] if config.distinct else available
    drawn: list[Question] = []
    rng = random.Random(f"order {config.seed}")
    while len(drawn) < count:
        drawn += available if not drawn and not config.path else rng.sample(available, len(available))
    return drawn[:count]


def assign_teams(
    config: Config, pool: Sequence[str], questions: Sequence[Question | TeamQuestion], salt: str
) -> list[TeamQuestion]:
    """Assign a team to each question that has none.

    The team is that of the question's source, or as many of its workers as the config says, in random order.
    If the config has recorded sets for the cards, they are worded for the team. Up to `requests_per_team`
    consecutive questions of one source share a team.
    """
    rng, size = random.Random(f"{config.seed} {salt}"), config.pool.workers_per_question
    words = random.Random(f"{config.seed} {salt} cards")
    measured = measure_teams(config)
    assigned: list[TeamQuestion] = []
    room = 0
    for each in questions:
        if isinstance(each, TeamQuestion):
            assigned.append(each)
            room = 0
            continue
        if not room or assigned[-1].question.source != each.source:
            workers = _team(config, pool, each, rng, size)
            cards = write_team_cards(measured.get(each.source, {}), workers, words)
            room = config.questions.requests_per_team
        else:
            workers, cards = assigned[-1].workers, assigned[-1].cards
        assigned.append(TeamQuestion(each, workers, cards=cards))
        room -= 1
    return assigned


def worth_questions(
    config: Config, pool: Sequence[str], drawn: Sequence[TeamQuestion]
) -> dict[str, list[TeamQuestion]]:
    """Return the questions for judging workers (`training.worth`) by source, with whole teams: the drawn ones
    and all training sets, however long. Requests are excluded, as their workers' abilities are known.
    """
    questions = {each.question.id: each.question for each in drawn if not each.members}
    for also in config.questions.also:
        questions |= {each.id: each for each in _load_whole(also.train)}
    by_source: dict[str, list[TeamQuestion]] = {}
    for each in questions.values():
        team = tuple(config.pool.teams.get(each.source, pool))
        by_source.setdefault(each.source, []).append(TeamQuestion(each, team))
    return by_source


def _team(
    config: Config, pool: Sequence[str], question: Question, rng: random.Random, most: int | None
) -> tuple[str, ...]:
    team = config.pool.teams.get(question.source, pool)
    _check_team(question.source, team, pool)
    if not config.pool.shuffle:
        return tuple(team)
    return tuple(rng.sample(list(team), min(most or len(team), len(team))))


def eval_questions(config: Config, pool: Sequence[str]) -> list[TeamQuestion]:
    """Return the held-out questions, each with its whole team in random order."""
    rng, measured = random.Random(f"{config.seed} held out"), measure_teams(config)
    questions: list[TeamQuestion] = []
    for each in _draw_held_out_questions(config) if config.held_out else ():
        if not isinstance(each, TeamQuestion):
            workers = _team(config, pool, each, rng, None)
            each = TeamQuestion(each, workers, cards=write_team_cards(measured.get(each.source, {}), workers))
        questions.append(each)
    return questions


def _draw_held_out_questions(config: Config) -> Sequence[Question | TeamQuestion]:
    """Return questions that training never sees. Half of the synthetic ones are composite, if any are."""
    own, count = config.questions, config.held_out
    if own.path and not own.held_out_path:
        raise SettingsError(
            "held_out needs questions that are never used for training. "
            "Set questions.held_out_path to a file of such questions, or set held_out to 0."
        )
    rng, others = random.Random("held out"), list[Question]()
    for each in own.also:
        available = _load_set(each.held_out, each)
        _check_apart(_load_set(each.train, each), available)
        others += _draw(available, round(each.share * count), rng)
    if own.path and own.held_out_path:
        return _second_file(own.path, own.held_out_path)[: count - len(others)] + others
    if own.source == "requests":
        return [*request_questions("measured", count - len(others), "held_out"), *others]
    share = 0.5 if own.composite_share else 0.0
    return _skills(own, 1_000_003, count - len(others), share, "held_out") + others


def _second_file(path: str, held_out_path: str) -> list[Question]:
    trained = {text for question in read_questions(path) for text in (question.id, question.text)}
    held_out = read_questions(held_out_path)
    for question in held_out:
        if trained & {question.id, question.text}:
            raise SettingsError(
                f"questions: the question {question.id!r} is in both {held_out_path} and {path}. "
                "Remove it from one of the files."
            )
    return held_out


def _load_whole(name: str) -> list[Question]:
    try:
        return load(name)
    except EvaluationError as exc:
        raise SettingsError(f"questions.also: {exc.message}") from exc


def _load_set(name: str, also: AlsoConfig) -> list[Question]:
    questions = _load_whole(name)
    short = [each for each in questions if also.max_chars is None or len(each.text) <= also.max_chars]
    if not short:
        raise SettingsError(
            f"questions.also: {name} has no question of at most {also.max_chars} characters. Raise max_chars."
        )
    return short


def _draw(questions: Sequence[Question], count: int, rng: random.Random) -> list[Question]:
    """Draw `count` questions at random. If there are fewer, repeat all of them equally often."""
    drawn: list[Question] = []
    while len(drawn) < count:
        drawn += rng.sample(questions, len(questions))
    return drawn[:count]


def _synthetic(config: QuestionsConfig, count: int) -> list[Question]:
    """Return `count` different synthetic questions, with the composite share growing in `STAGES` steps."""
    last, first = config.composite_share, config.composite_share_at_first
    shares = [last] if first is None else [first + (last - first) * k / (STAGES - 1) for k in range(STAGES)]
    different: dict[str, Question] = {}
    for stage, share in enumerate(shares):
        target = count * (stage + 1) // len(shares)
        seed = config.seed * 1000 + stage
        for question in _skills(config, seed, 2 * (target - len(different)) + 100, share, "train"):
            if len(different) < target:
                different.setdefault(question.text, question)
    if len(different) < count:
        raise SettingsError(
            f"questions.families: these families have only {len(different)} different questions. "
            "Set questions.distinct to that number."
        )
    return list(different.values())


def _skills(config: QuestionsConfig, seed: int, count: int, share: float, split: Split) -> list[Question]:
    try:
        return questions(seed, count, share, config.families or FAMILIES, split=split)
    except ValueError as exc:
        raise SettingsError(f"questions.families: {exc}.") from exc
