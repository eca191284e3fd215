"""Questions of a recorded pool (`evaluation.recordings`): `recorded:PATH?part=test&difficulty=hard`.

`part` splits by the questions' own text, so the same question is on the same side whoever asks: `train` is for learning
routers and conductors, `test` for judging them; `share` is the training part of all (0.6). `max_chars` leaves longer ones out.
"""

import sys

from evaluation.errors import EvaluationError
from evaluation.spec import Named, share, text
from evaluation.spec import count as count_of
from evaluation.questions import Question
from evaluation.recordings import Recorded, read

PARTS = ("all", "train", "test")


def questions(named: Named, count: int | None, seed: int) -> list[Question]:
    """See `evaluation.sources.Source`."""
    named.only("part", "share", "difficulty", "category", "max_chars")
    if not named.detail:
        raise EvaluationError("recorded needs a path: recorded:PATH.")
    part = named.options.get("part", "all")
    if part not in PARTS:
        raise EvaluationError(f"recorded: part={part!r} is none of {', '.join(PARTS)}.")
    of_training = named.value("share", 0.6, share)
    kept = [each for each in read(named.detail).values() if part == "all" or _part(each, of_training) == part]
    for field in ("difficulty", "category"):
        wanted = named.value(field, "", text)
        kept = [each for each in kept if not wanted or getattr(each, field) == wanted]
    longest = named.value("max_chars", sys.maxsize, count_of)
    return [_question(each) for each in kept if len(each.asked) <= longest]


def _part(each: Recorded, of_training: float) -> str:
    return "train" if int(each.key[:8], 16) / 16**8 < of_training else "test"


def _question(each: Recorded) -> Question:
    answered = {name: answer for name, answer in each.answers.items() if answer is not None}
    return Question(
        id=f"recorded/{each.dataset}/{each.key}",
        text=each.asked,
        expected=each.expected,
        grader="recorded",
        source="recorded",
        family=each.category,
        facts={
            "difficulty": each.difficulty,
            "dataset": each.dataset,
            "right": sorted({answered[name].strip() for name in each.right}),
        },
    )
