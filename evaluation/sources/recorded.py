"""Questions of a recorded pool (`evaluation.recordings`): `recorded:PATH?part=test&difficulty=hard`.

`part=train` selects the questions for training routers and conductors, and `part=test` those for judging
them. The split depends on the question's text, so a question is on the same side in every file. `share` is
the training share (default: 0.6). `max_chars` leaves out longer questions.
"""

import sys

from evaluation import EvaluationError
from evaluation.questions import Question
from evaluation.recordings import TRAIN_SHARE, RecordedQuestion, read_recordings, side_of
from evaluation.spec import Spec, share
from evaluation.spec import count as count_of

PARTS = ("all", "train", "test")


def questions(spec: Spec, count: int | None, seed: int) -> list[Question]:
    return [_question(key, each) for key, each in select(spec)]


def select(spec: Spec) -> list[tuple[str, RecordedQuestion]]:
    """Return the recorded questions that `spec` names, with their keys."""
    spec.allow_only("part", "share", "difficulty", "category", "max_chars")
    if not spec.detail:
        raise EvaluationError("recorded needs the path of a recorded pool. Use recorded:PATH.")
    part = spec.options.get("part", "all")
    if part not in PARTS:
        raise EvaluationError(f"recorded: part={part!r} must be one of {', '.join(PARTS)}.")
    train_share = spec.value("share", TRAIN_SHARE, share)
    max_chars = spec.value("max_chars", sys.maxsize, count_of)
    difficulty, category = spec.options.get("difficulty"), spec.options.get("category")
    return [
        (key, each)
        for key, each in read_recordings(spec.detail).items()
        if part in ("all", side_of(key, train_share))
        and (not difficulty or each.difficulty == difficulty)
        and (not category or each.category == category)
        and len(each.prompt) <= max_chars
    ]


def _question(key: str, each: RecordedQuestion) -> Question:
    return Question(
        id=f"recorded/{each.dataset}/{key}",
        text=each.prompt,
        expected=each.expected,
        grader="recorded",
        source="recorded",
        family=each.category,
        facts={"difficulty": each.difficulty, "dataset": each.dataset, "right": sorted(each.right_answers)},
    )
