"""The other half of the first lesson: whole requests, of which only the field is to be named.

Which field a request is about does not depend on who is in the team, so a row has many of them behind one team's cards, on
whatever field: a sixth of the tokens of a plan, for the part of it that a small model gets wrong most often.

SYNTHETIC, like the requests (`training.curriculum.requests`).
"""

import random
from functools import partial

from training.curriculum.materials import SMALL_TALK, Materials, load
from training.curriculum.questions import RequestQuestion, question_of
from training.curriculum.requests import Request, draw_short, request_about
from training.curriculum.teams import DrawnTeam


def namings(seed: object, count: int, team: DrawnTeam, longest: int | None = None) -> list[RequestQuestion]:
    """`count` requests of the training side, of one part each. Perhaps nobody in the team can do it.

    Args:
        seed: the same gives the same.
        count: how many.
        team: whose cards stand before them.
        longest: characters in a request; None: as they come.
    """
    rng, materials = random.Random(f"namings {seed}"), load("train")
    requests = (draw_short(partial(_draw, rng, materials), longest) for _ in range(count))
    return [question_of(each, team, f"namings/{seed}/{number}") for number, each in enumerate(requests)]


def _draw(rng: random.Random, materials: Materials) -> Request:
    fields = [*materials.draw_fields(rng), materials.domains[SMALL_TALK]]
    return request_about(rng, materials, rng.choice(fields))
