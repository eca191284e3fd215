"""The first lesson of a conductor that reads cards: a few words, and the number of the worker whose card fits
them.

From whole requests alone a small model does not learn to find a card in its prompt: the one token that says
whom to ask drowns in all the others. So it first learns to look up and nothing else, many queries to each
team, a dozen tokens each. At first most teams have made-up specialities, words drawn at random, which only
looking can match; the others are the curriculum's, asked for a field by its name, by another card of it, or
by a short request.

SYNTHETIC, like the teams (`training.curriculum.teams`).
"""

import random
import re
from collections.abc import Iterator
from functools import cache

from training.curriculum.materials import Domain, Materials, load
from training.curriculum.questions import RequestQuestion, question_of
from training.curriculum.requests import Request, RequestPart, fill
from training.curriculum.teams import SIZES, DrawnTeam, Teammate, draw_team

LEAST_MADE_UP = 0.15
"""The share of made-up teams never falls below, so that matching words is not unlearned."""
BY_CARD, BY_CLAUSE, BY_OTHER_NAME = 0.2, 0.2, 0.25
"""How often a field is asked for by another card, by a request, and by another of its names; else it is by the
one that plans have.
"""
CHECKS = 0.2
"""Of the queries to a team that has a critic, those for a check."""
ANY_FIELD = 0.15
"""Of the queries, those for a field that perhaps only a generalist covers."""
LONGEST = 120
"""Characters of a query."""
MADE_UP_CARDS = (
    "{a} and {b}",
    "expert in {a}, {b}",
    "{a}",
    "I do {a} and {b} best",
    "{a}, {b}, {c}",
    "trained on {a} and {b}",
    "Best at {a}; knows {b} as well",
)
_WORD = re.compile(r"\b[a-z]{4,}\b")


def look_ups(seed: object, count: int, per_team: int, made_up: float) -> list[RequestQuestion]:
    """`count` look-ups of the training side, those to one team one after the other.

    Args:
        seed: the same gives the same.
        count: how many.
        per_team: to each team.
        made_up: the share of teams with made-up specialities at first; it falls linearly, to
            `LEAST_MADE_UP` of itself.
    """
    rng, materials = random.Random(f"look-ups {seed}"), load("train")
    drawn: list[RequestQuestion] = []
    while len(drawn) < count:
        share = made_up * max(LEAST_MADE_UP, 1 - 1.5 * len(drawn) / count)
        if rng.random() < share:
            team = _made_up_team(rng)
            queries = _made_up_queries(rng, team)
        else:
            team = draw_team(rng, materials)
            queries = _queries(rng, materials, team)
        for _ in range(per_team):
            words, part = next(queries)
            request = Request("one", (words,), (part,))
            drawn.append(question_of(request, team, f"look-ups/{seed}/{len(drawn)}"))
    return drawn[:count]


def _made_up_team(rng: random.Random) -> DrawnTeam:
    """Workers of random specialities; what each can do is the first word of its card."""
    size = rng.choice(SIZES)
    words = rng.sample(_vocabulary(), 3 * size)
    mates = [
        Teammate(rng.choice(MADE_UP_CARDS).format(a=a, b=b, c=c), "specialist", frozenset({a}))
        for a, b, c in zip(words[:size], words[size : 2 * size], words[2 * size :], strict=True)
    ]
    return DrawnTeam(tuple(mates), shows_facts=False)


def _made_up_queries(rng: random.Random, team: DrawnTeam) -> Iterator[tuple[str, RequestPart]]:
    while True:
        word = rng.choice(team.topics)
        yield word, RequestPart(word)


def _queries(rng: random.Random, materials: Materials, team: DrawnTeam) -> Iterator[tuple[str, RequestPart]]:
    """What a team of the curriculum is asked for, and the part that it stands for."""
    topics = [name for name in team.topics if name in materials.domains]
    while True:
        drawn = [each.domain for each in materials.draw_fields(rng)]
        anybodys = [name for name in drawn if name not in team.claims and team.best(name)]
        others = bool(anybodys) and (not topics or rng.random() < ANY_FIELD)
        domain = materials.domains[rng.choice(anybodys if others else topics)]
        if team.critics and rng.random() < CHECKS:
            yield f"checking {domain.what}", RequestPart(domain.domain, checks=True)
        else:
            yield _words(rng, domain, team), RequestPart(domain.domain)


def _words(rng: random.Random, domain: Domain, team: DrawnTeam) -> str:
    """The field's name, or another one, another card of it, or what somebody could ask of it."""
    cards = sorted(set(domain.cards) - {mate.card for mate in team.mates})
    way = rng.random()
    if way < BY_CARD and cards:
        return rng.choice(cards)[:LONGEST]
    if BY_CARD <= way < BY_CARD + BY_CLAUSE and domain.parts:
        return fill(rng, rng.choice(domain.parts), domain.slots)[:LONGEST]
    if way >= 1 - BY_OTHER_NAME and domain.names:
        return rng.choice(domain.names)
    return domain.what


@cache
def _vocabulary() -> tuple[str, ...]:
    """The ordinary words of the training side's requests."""
    texts = [text for domain in load("train").domains.values() for text in (*domain.phrasings, *domain.parts)]
    return tuple(sorted({word for text in texts for word in _WORD.findall(text)}))
