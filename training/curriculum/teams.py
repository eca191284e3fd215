"""Random teams of two to nine workers: their cards, and what each worker can actually do.

SYNTHETIC: how well a worker does a part follows from the field of its card, so that a program can judge
answers.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Literal

from conductor.model.usage import Price
from training.curriculum.materials import NARROW, SMALL_TALK, Domain, Materials, Role

Kind = Literal["specialist", "strong", "plain", "weak", "critic", "unusable"]
SIZES = range(2, 10)
EVERYTHING: dict[Kind, float] = {"strong": 0.75, "plain": 0.5, "weak": 0.25}
"""Probability that a worker without a field does a part correctly, by kind of worker."""
CHATS: dict[Kind, float] = {"plain": 0.9, "weak": 1.0, "specialist": 0.4, "strong": 0.3, "critic": 0.2}
"""Reward of small talk by kind, if no prices are shown. Every worker can, so a cheap one is best."""
CHECKS_WELL = 0.75
"""Minimum quality that a worker needs to check another worker's result, in a team without a critic."""
USD_PER_MTOK: dict[Kind, tuple[float, ...]] = {
    "specialist": (0.1, 0.2, 0.4, 0.8, 1.5, 3.0),
    "strong": (8.0, 10.0, 15.0, 25.0),
    "plain": (0.8, 1.0, 2.0, 4.0),
    "weak": (0.03, 0.05, 0.1),
    "critic": (0.2, 0.5, 1.0, 2.0),
    "unusable": (0.05, 0.5, 2.0),
}
"""Dollars per million output tokens. An input token costs a quarter of that."""
TOKENS_PER_S: dict[Kind, tuple[int, ...]] = {
    "specialist": (40, 60, 90, 120),
    "strong": (20, 30, 45),
    "plain": (60, 80, 110),
    "weak": (150, 200, 300),
    "critic": (30, 60, 90),
    "unusable": (50, 100),
}
DEARER = 5
"""Factor by which the second of two workers of the same field is more expensive than the first."""
WORSE_FOR_ITS_PRICE = 0.2
"""Penalty of a worker that costs at least twice as much as another able one."""
TRIES = 40


@dataclass(frozen=True, slots=True)
class Teammate:
    """Worker of a team: its card, and its actual abilities.

    Args:
        kind: `specialist`, or the ability of a worker without a field.
        might: the domains that it may be able to do. A team with this worker gets no request about them.
    """

    card: str
    kind: Kind
    can: frozenset[str] = frozenset()
    might: frozenset[str] = frozenset()
    price: Price = Price(Decimal(0), Decimal(0))
    tokens_per_s: float = 0.0

    def quality(self, domain: str) -> float:
        """Return the probability that it does a part of `domain` correctly."""
        if domain in self.can:
            return 1.0
        return CHATS.get(self.kind, 0.0) if domain == SMALL_TALK else EVERYTHING.get(self.kind, 0.0)


@dataclass(frozen=True)
class DrawnTeam:
    """Two to nine workers of a team, in the order and with the facts that the conductor sees."""

    mates: tuple[Teammate, ...]
    shows_facts: bool

    def reward(self, index: int, domain: str) -> float:
        """Return the worker's quality for `domain`, minus a penalty for a high price."""
        mate = self.mates[index]
        worth = mate.quality(domain)
        if not self.shows_facts or not worth:
            return worth
        as_good = [each for each in self.mates if each.quality(domain) >= worth]
        if domain == SMALL_TALK:
            worth, as_good = 1.0, [each for each in self.mates if each.quality(domain)]
        cheapest = min(each.price.output_usd_per_mtok for each in as_good)
        return worth - WORSE_FOR_ITS_PRICE if mate.price.output_usd_per_mtok >= 2 * cheapest else worth

    def rewards(self, domain: str) -> tuple[float, ...]:
        return tuple(self.reward(index, domain) for index in range(len(self.mates)))

    def best(self, domain: str) -> tuple[int, ...]:
        """Return the workers with the highest reward, or () if no worker can do the domain."""
        return self._find_best(domain) if domain in self._special else self._best_elsewhere

    def _find_best(self, domain: str) -> tuple[int, ...]:
        rewards = self.rewards(domain)
        top = max(rewards)
        return tuple(index for index, each in enumerate(rewards) if each == top > 0)

    @cached_property
    def _best_elsewhere(self) -> tuple[int, ...]:
        """The best workers for every domain that is not in `_special`: all these domains have the same rewards."""
        return self._find_best("")

    @cached_property
    def _special(self) -> frozenset[str]:
        return self.claims | {SMALL_TALK}

    @cached_property
    def topics(self) -> list[str]:
        """Domains of the specialists that no other worker might be able to do."""
        might = frozenset[str]().union(*(mate.might for mate in self.mates))
        return sorted(frozenset[str]().union(*(mate.can for mate in self.mates)) - might)

    @cached_property
    def claims(self) -> frozenset[str]:
        """Domains that a worker of this team can do or might be able to do."""
        return frozenset[str]().union(*(mate.can | mate.might for mate in self.mates))

    @cached_property
    def disputed(self) -> frozenset[str]:
        """Domains that a worker might or might not be able to do. No request is about them."""
        return self.claims - frozenset(self.topics)

    @property
    def critics(self) -> tuple[int, ...]:
        """Indices of the workers that check the results of others."""
        return tuple(index for index, mate in enumerate(self.mates) if mate.kind == "critic")


def draw_team(rng: random.Random, materials: Materials) -> DrawnTeam:
    """Draw a team in random order from a side's cards. At least one worker can answer requests."""
    size = rng.choice(SIZES)
    mates = _others(rng, materials, size)
    while len(mates) < size:
        mates += _specialists(rng, materials, mates, size - len(mates))
    rng.shuffle(mates)
    return DrawnTeam(tuple(mates), shows_facts=rng.random() < 0.3)


def _others(rng: random.Random, materials: Materials, size: int) -> list[Teammate]:
    """Draw generalists, a critic, a worker for small talk and a useless one, at most half of the team."""
    cards = materials.generalists
    kinds: list[tuple[Kind, Sequence[str], float]] = [
        ("strong", cards.strong, 0.3),
        ("plain", cards.plain, 0.3),
        ("weak", cards.weak, 0.3),
        ("critic", cards.critics, 0.2),
        ("unusable", cards.unusable, 0.12),
    ]
    rng.shuffle(kinds)
    mates = [_teammate(rng, rng.choice(texts), kind) for kind, texts, share in kinds if rng.random() < share]
    if rng.random() < 0.12:
        mates.append(_specialist_of(rng, materials.domains[SMALL_TALK]))
    if rng.random() < 0.1:  # a team without any specialist
        mates = [mate for mate in mates if mate.kind not in ("critic", "unusable")]
        missing: list[Kind] = ["strong", "plain", "weak"]
        while len(mates) < size:
            kind = rng.choice(missing)
            card = rng.choice(getattr(cards, kind))
            if card not in {mate.card for mate in mates}:
                mates.append(_teammate(rng, card, kind))
        return mates[:size]
    return mates[: size // 2]


def _specialists(
    rng: random.Random, materials: Materials, mates: Sequence[Teammate], room: int
) -> list[Teammate]:
    """Draw a specialist without a field in common with `mates`, or two of one field at different prices."""
    for _ in range(TRIES):
        sources: Sequence[Domain | Role] = materials.roles if rng.random() < 0.3 else materials.fields
        if materials.topics and rng.random() < NARROW:
            sources = materials.topics
        source = rng.choice(sources)
        if not source.cards:
            continue
        mate = _specialist_of(rng, source)
        if any(_overlap(mate, other) for other in mates):
            continue
        if room > 1 and rng.random() < 0.12:
            twin = _specialist_of(rng, source)
            price = Price(mate.price.input_usd_per_mtok * DEARER, mate.price.output_usd_per_mtok * DEARER)
            if twin.card != mate.card:
                return [
                    mate,
                    Teammate(twin.card, "specialist", mate.can, mate.might, price, twin.tokens_per_s),
                ]
        return [mate]
    return [_teammate(rng, rng.choice(materials.generalists.weak), "weak")]


def _overlap(one: Teammate, other: Teammate) -> bool:
    """Return whether the two have the same card, or a domain that both can or might do."""
    return bool(one.can & (other.can | other.might) or other.can & one.might) or one.card == other.card


def _specialist_of(rng: random.Random, source: Domain | Role) -> Teammate:
    can = (source.domain,) if isinstance(source, Domain) else source.domains
    return _teammate(rng, rng.choice(source.cards), "specialist", can, source.near)


def _teammate(
    rng: random.Random, card: str, kind: Kind, can: Iterable[str] = (), might: Iterable[str] = ()
) -> Teammate:
    usd = Decimal(str(rng.choice(USD_PER_MTOK[kind])))
    speed = float(rng.choice(TOKENS_PER_S[kind]))
    return Teammate(card, kind, frozenset(can), frozenset(might), Price(usd / 4, usd), speed)
