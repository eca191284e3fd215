"""Namings, the second half of the first lesson. In a naming, the conductor reads a whole request. For each of
its parts, it writes the field of knowledge that the part needs, and the worker for it.

A row has one team's cards, followed by many namings. The rest of each plan is left out, because a small model
rarely gets it wrong. Some requests of one part are about fields of the team's specialists, and others about
any field, so that the model learns when to use a generalist.

SYNTHETIC, like the requests (`training.curriculum.requests`).
"""

import random
from functools import partial

from training.curriculum.materials import SMALL_TALK, Materials, load
from training.curriculum.questions import RequestQuestion, question_of
from training.curriculum.requests import Kind, Request, draw_request, draw_short, request_about
from training.curriculum.teams import DrawnTeam

COVERED = 0.6
"""Share of the requests that are about a field of the team's specialists, if it has any."""
SMALL = 0.1
"""Share of the requests that are small talk."""
OF_SEVERAL_PARTS: dict[Kind, float] = {"chain": 0.35, "join": 0.4, "check": 0.25}
"""Share of each kind among requests of several parts, if the team can do it."""


def namings(seed: object, count: int, team: DrawnTeam, longest: int | None = None) -> list[RequestQuestion]:
    """Return `count` training requests of one part, of at most `longest` characters. The team may lack a
    worker.
    """
    rng, materials = random.Random(f"namings {seed}"), load("train")
    requests = (draw_short(partial(_draw, rng, materials, team), longest) for _ in range(count))
    return [question_of(each, team, f"namings/{seed}/{number}") for number, each in enumerate(requests)]


def namings_of_parts(
    seed: object, count: int, team: DrawnTeam, longest: int | None = None
) -> list[RequestQuestion]:
    """Return `count` training requests of several parts, or of one if the team cannot do more. The list is
    empty for a made-up team.
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
