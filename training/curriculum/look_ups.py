"""Look-ups, the first lesson of a conductor that reads cards. A look-up is a query of a few words. Its answer
is the worker whose card fits.

From whole requests alone, a small model does not learn to find a card in its prompt, because the token that
chooses the worker is a tiny part of the loss. The model therefore learns look-ups first: many queries of a
dozen tokens for each team. At first, most teams have made-up specialities. These are random words, so the model
can match them only by reading the cards. The other teams are those of the curriculum. Queries to them are the
name of a field, another card of the field, or a short request.

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
"""Final over initial share of made-up teams, above 0 so that matching words is not unlearned."""
BY_CARD, BY_CLAUSE, BY_OTHER_NAME = 0.2, 0.2, 0.25
"""Shares of queries by another card, a request, and another name of the field. The rest use plans' name."""
CHECKS = 0.2
"""Share of the queries that ask for a check, in a team with a critic."""
ANY_FIELD = 0.15
"""Share of the queries about a field that perhaps only a generalist covers."""
LONGEST = 120
"""Maximum number of characters of a query."""
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
    """Return `count` look-ups for training, consecutive by team. `made_up` is the share of made-up teams at
    first, and falls linearly to `LEAST_MADE_UP` times itself.
    """
    rng, materials = random.Random(f"look-ups {seed}"), load("train")
    questions: list[RequestQuestion] = []
    while len(questions) < count:
        share = made_up * max(LEAST_MADE_UP, 1 - 1.5 * len(questions) / count)
        if rng.random() < share:
            team = _draw_made_up_team(rng)
            queries = _draw_made_up_queries(rng, team)
        else:
            team = draw_team(rng, materials)
            queries = _queries(rng, materials, team)
        for _ in range(per_team):
            words, part = next(queries)
            request = Request("one", (words,), (part,))
            questions.append(question_of(request, team, f"look-ups/{seed}/{len(questions)}"))
    return questions[:count]


def _draw_made_up_team(rng: random.Random) -> DrawnTeam:
    """Draw a team with random specialities. A worker's ability is named by the first word of its card."""
    size = rng.choice(SIZES)
    words = rng.sample(_vocabulary(), 3 * size)
    mates = [
        Teammate(rng.choice(MADE_UP_CARDS).format(a=a, b=b, c=c), "specialist", frozenset({a}))
        for a, b, c in zip(words[:size], words[size : 2 * size], words[2 * size :], strict=True)
    ]
    return DrawnTeam(tuple(mates), shows_facts=False)


def _draw_made_up_queries(rng: random.Random, team: DrawnTeam) -> Iterator[tuple[str, RequestPart]]:
    while True:
        word = rng.choice(team.topics)
        yield word, RequestPart(word)


def _queries(rng: random.Random, materials: Materials, team: DrawnTeam) -> Iterator[tuple[str, RequestPart]]:
    """Yield queries for a team of the curriculum, each with the part of a request that the query describes."""
    topics = [name for name in team.topics if name in materials.domains]
    while True:
        fields = [each.domain for each in materials.draw_fields(rng)]
        uncovered = [name for name in fields if name not in team.claims and team.best(name)]
        others = bool(uncovered) and (not topics or rng.random() < ANY_FIELD)
        domain = materials.domains[rng.choice(uncovered if others else topics)]
        if team.critics and rng.random() < CHECKS:
            yield f"checking {domain.what}", RequestPart(domain.domain, checks=True)
        else:
            yield _words(rng, domain, team), RequestPart(domain.domain)


def _words(rng: random.Random, domain: Domain, team: DrawnTeam) -> str:
    """Return the field's name, another name or card of it, or a request about it."""
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
    """Return the ordinary words in the requests of the training side."""
    texts = [text for domain in load("train").domains.values() for text in (*domain.phrasings, *domain.parts)]
    return tuple(sorted({word for text in texts for word in _WORD.findall(text)}))
