"""Write a measurement as a card: a few words that a conductor and a person can read.

`write_card` writes the card that `podium cards` shows. `vary_card` states the same facts in one of many
wordings, so that a conductor in training learns to read cards, and not one wording.

A kind of question is a strength if the low end of its 95 % interval (Wilson's) is above the worker's overall
share, and at least half of its answers are right. It is a weakness if the high end is below the overall
share. A kind with few questions is therefore named only if it is far from the overall share. Strengths are
ordered by their low end, weaknesses by their high end.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.cards.measurement import MIN_QUESTIONS, CardMeasurement
from evaluation.statistics import Accuracy

BEST, WORST = 3, 2
"""Maximum number of strengths and of weaknesses on the card of `podium cards`."""
TOO_FEW = "too few questions of any kind to tell kinds apart"
"""Text that replaces the strengths and weaknesses if no kind has enough questions."""
Claim = tuple[str, Accuracy]


@dataclass(frozen=True, slots=True)
class Frame:
    """Wording of a card. A part without content is left out.

    Args:
        best: the template of the strengths, which replace `{}`.
        worst: the template of the weaknesses, which replace `{}`.
        overall: the template of the overall share, with `{percent}`, `{fraction}`, `{right}` and `{n}`.
        even: the text that replaces both lists if no kind stands out.
        item: the template of one kind, with `{kind}` and the fields of `overall`.
        comma: the text between two kinds.
        join: the text between two parts.
    """

    best: str
    worst: str
    overall: str
    even: str = "no kind of question stands out"
    item: str = "{kind} ({percent} %)"
    comma: str = ", "
    last: str = ", "
    join: str = "; "
    end: str = ""
    leads: bool = False


FRAMES = (
    Frame("best at {}", "worst at {}", "{percent} % of {n} overall"),
    Frame(
        "Best at {}",
        "Weakest at {}",
        "Overall {percent}% right",
        "No clear strengths or weaknesses",
        *("{kind}", ", ", " and ", ". ", "."),
    ),
    Frame(
        "strong: {}",
        "weak: {}",
        "right in {percent} % of {n} questions",
        "nothing it does better or worse",
        "{kind} {percent} % of {n}",
        leads=True,
    ),
    Frame("{}", "but {}", "all {n}: {percent}%", "no kind stands out", "{kind}: {percent}%"),
    Frame(
        "Ask it about {}",
        "rather not about {}",
        "{right} of {n} right",
        "No kind of question to seek or to avoid",
        *("{kind}", ", ", " or ", "; ", "."),
    ),
    Frame(
        "good {}",
        "poor {}",
        "mean {fraction}",
        "even",
        "{kind} {fraction}",
        comma=", ",
        join=" | ",
        leads=True,
    ),
    Frame(
        "Stands out in {}",
        "falls behind in {}",
        "accuracy {percent} % (n = {n})",
        "Nothing stands out",
        "{kind} ({right}/{n})",
        *(", ", " and ", ", ", "."),
    ),
    Frame(
        "Strengths: {}",
        "Weaknesses: {}",
        "Measured on {n} questions, {percent} % right",
        "No strengths and no weaknesses were seen",
        *("{kind}", ", ", ", ", ". ", "."),
        leads=True,
    ),
    Frame("+ {}", "- {}", "= {percent} %", "+- all alike", "{kind} {percent} %", ", ", ", ", "  "),
    Frame(
        "its best: {}",
        "its worst: {}",
        "{right} right answers to {n} questions",
        "no best and no worst",
        "{percent} % in {kind}",
        last=" and ",
    ),
)
"""Wordings of cards. `podium cards` uses the first one."""


def can_write(measured: CardMeasurement) -> bool:
    """Return whether there are enough graded questions for a card."""
    return measured.overall is not None and measured.overall.n >= MIN_QUESTIONS


def write_card(measured: CardMeasurement, facts: Sequence[str] = ()) -> str:
    """Return the card that `podium cards` shows. `facts` are a few words each, such as `sees images`."""
    return _write(FRAMES[0], measured, facts, BEST, WORST, with_overall=True)


def vary_card(measured: CardMeasurement, rng: random.Random) -> str:
    """Return a card with the same facts in random wording and number of kinds."""
    frame = rng.choice(FRAMES)
    best, worst = rng.randint(1, 4), rng.choice((0, 1, 1, 2, 3))
    return _write(frame, measured, (), best, worst, with_overall=rng.random() < 0.75)


def strengths(measured: CardMeasurement, most: int) -> list[Claim]:
    """Return at most `most` kinds that the worker is best at. The most certain one comes first."""
    level = _level(measured)
    sure = [(kind, each) for kind, each in measured.kinds.items() if each.low > level and each.mean >= 0.5]
    return sorted(sure, key=lambda claim: -claim[1].low)[:most]


def weaknesses(measured: CardMeasurement, most: int) -> list[Claim]:
    """Return at most `most` kinds that the worker is worst at. The most certain one comes first."""
    level = _level(measured)
    sure = [(kind, each) for kind, each in measured.kinds.items() if each.high < level]
    return sorted(sure, key=lambda claim: claim[1].high)[:most]


def _level(measured: CardMeasurement) -> float:
    return measured.overall.mean if measured.overall else 0.0


def _write(
    frame: Frame,
    measured: CardMeasurement,
    facts: Sequence[str],
    best: int,
    worst: int,
    *,
    with_overall: bool,
) -> str:
    if measured.overall is None or not can_write(measured):
        raise ValueError(f"a card needs at least {MIN_QUESTIONS} graded questions")
    claims = [
        template.format(_list(frame, kinds))
        for template, kinds in (
            (frame.best, strengths(measured, best)),
            (frame.worst, weaknesses(measured, worst)),
        )
        if kinds
    ]
    if not claims:
        only = next((kind for kind, each in measured.kinds.items() if each.n == measured.overall.n), None)
        even = frame.even if measured.kinds else TOO_FEW
        claims, with_overall = [f"tried on {only} only" if only else even], True
    overall = [_fill(frame.overall, "", measured.overall)] if with_overall else []
    parts = [*(overall + claims if frame.leads else claims + overall), *facts]
    if frame.join == ". ":  # each part is a sentence
        parts = [part[0].upper() + part[1:] for part in parts]
    return frame.join.join(parts) + frame.end


def _list(frame: Frame, claims: Sequence[Claim]) -> str:
    items = [_fill(frame.item, kind, each) for kind, each in claims]
    return frame.last.join(filter(None, [frame.comma.join(items[:-1]), items[-1]]))


def _fill(template: str, kind: str, share: Accuracy) -> str:
    percent = _percent(share)
    return template.format(
        kind=kind,
        percent=percent,
        fraction=f"{percent / 100:.2f}",
        right=f"{round(share.mean * share.n):,}",
        n=f"{share.n:,}",
    )


def _percent(share: Accuracy) -> int:
    """Round to whole percent. The result is 0 or 100 only if no answer or every answer is right."""
    percent = round(100 * share.mean)
    return percent if share.mean in (0, 1) else min(max(percent, 1), 99)
