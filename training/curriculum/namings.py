"""The other half of the first lesson: whole requests, of which the field of each part is to be named, and whom to ask for
it.

A row has many of them behind one team's cards: of a plan only what a small model gets wrong most often. Of those of one
part some are on fields of the team's specialists, the others on anything, so that it learns when to ask a generalist.

SYNTHETIC, like the requests (`training.curriculum.requests`).
"""

import random
from functools import partial

from training.curriculum.materials import SMALL_TALK, Materials, load
from training.curriculum.questions import RequestQuestion, question_of
from training.curriculum.requests import Kind, Request, draw_request, draw_short, request_about
from training.curriculum.teams import DrawnTeam

COVERED = 0.6
"""How often a request is on a field of one of the team's specialists, where it has any."""
SMALL = 0.1
"""How often it is small talk instead."""
OF_SEVERAL_PARTS: dict[Kind, float] = {"chain": 0.35, "join": 0.4, "check": 0.25}
"""How often each of these is drawn, where the team can do it."""


def namings(seed: object, count: int, team: DrawnTeam, longest: int | None = None) -> list[RequestQuestion]:
    """`count` requests of the training side, of one part each. Perhaps nobody in the team can do one.

    Args:
        seed: the same gives the same.
        count: how many.
        team: whose cards stand before them.
        longest: characters in a request; None: as they come.
    """
    rng, materials = random.Random(f"namings {seed}"), load("train")
    requests = (draw_short(partial(_draw, rng, materials, team), longest) for _ in range(count))
    return [question_of(each, team, f"namings/{seed}/{number}") for number, each in enumerate(requests)]


def namings_of_parts(
    seed: object, count: int, team: DrawnTeam, longest: int | None = None
) -> list[RequestQuestion]:
    """The same of several parts, each of which somebody can do; of one where the team is too small for more. None for a
    team of made-up specialities.
    """
    rng, materials = random.Random(f"namings of parts {seed}"), load("train")
    if not any(team.best(name) for name in materials.domains if name != SMALL_TALK):
        return []
    draw = partial(draw_request, rng, materials, team, OF_SEVERAL_PARTS)
    requests = (draw_short(draw, longest) for _ in range(count))
    return [
        question_of(each, team, f"namings-of-parts/{seed}/{number}") for number, each in enumerate(requests)
    ]


def _draw(rng: random.Random, materials: Materials, team: DrawnTeam) -> Request:
    if rng.random() < SMALL:
        return request_about(rng, materials, materials.domains[SMALL_TALK])
    covered = [materials.domains[name] for name in team.topics if name in materials.domains]
    anything = [*materials.draw_fields(rng), materials.domains[SMALL_TALK]]
    return request_about(
        rng, materials, rng.choice(covered if covered and rng.random() < COVERED else anything)
    )
