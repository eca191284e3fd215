"""Texts of the curriculum: domains with phrasings and cards, topics, roles, generalists, and templates that
join clauses.

The texts are in the YAML files next to this module. The module reads them and decides which are held out:
whole domains and roles, and a fifth of the other phrasings and cards, chosen by their words. Topics and the
folders `cards`, `requests` and `joints` are only for training. None of them is about a held-out domain, and
none is used for measuring.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from evaluation.synthetic.questions import split_of
from serving.settings.workers import Frozen

Side = Literal["train", "held_out"]
Model = TypeVar("Model", bound=Frozen)
FOLDER = Path(__file__).parent
HELD_OUT_DOMAINS = frozenset({
    "astronomy", "chess", "cooking", "formal_letters", "geometry", "law", "music", "pets", "photography",
    "poems", "sql", "tables",
})  # fmt: skip
"""Domains that no training request is about, and whose cards no training team has."""
SMALL_TALK = "small_talk"
NARROW = 0.5
"""Share of the training requests about topics. The rest are about domains, a ninth as many."""


class Domain(Frozen):
    """Field of knowledge: requests about it, and the cards of its specialists."""

    domain: str
    what: str
    """Name of the field, in a few words."""
    names: tuple[str, ...] = ()
    """Other names of the field."""
    near: tuple[str, ...] = ()
    """Fields whose specialists might do this field's requests. They are never in the same team."""
    cards: tuple[str, ...]
    slots: Mapping[str, tuple[str, ...]] = {}
    """Values for each `{name}` in the texts."""
    phrasings: tuple[str, ...]
    """First messages of a user."""
    conversations: tuple[tuple[str, ...], ...] = ()
    """Conversations as lists of turns. The first and the last turn are the user's."""
    parts: tuple[str, ...] = ()
    """Clauses that ask for one thing."""
    then: tuple[str, ...] = ()
    """Clauses that use another worker's result, for which `{it}` stands."""


class FieldRequests(Frozen):
    """Further requests about a field, which are only for training."""

    phrasings: tuple[str, ...]
    parts: tuple[str, ...]
    then: tuple[str, ...]


class Role(Frozen):
    """A worker that covers several domains."""

    role: str
    domains: tuple[str, ...]
    near: tuple[str, ...] = ()
    cards: tuple[str, ...]


Described = TypeVar("Described", Domain, Role)


class Generalists(Frozen):
    """Cards of workers without a field, by their ability."""

    strong: tuple[str, ...]
    plain: tuple[str, ...]
    weak: tuple[str, ...]
    unusable: tuple[str, ...]
    critics: tuple[str, ...]


class JoinClause(Frozen):
    """Last clause of a request. It uses the results of the two clauses before it."""

    domain: str
    text: str


class Joints(Frozen):
    """Templates that join clauses `{a}` and `{b}`. `{A}` is capitalised, and `{j}` uses both results."""

    chain: tuple[str, ...]
    join: tuple[str, ...]
    join_last: tuple[JoinClause, ...]
    check: tuple[str, ...]
    check_subtasks: tuple[str, ...]
    openers: tuple[str, ...]
    closers: tuple[str, ...]
    slots: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Materials:
    """Texts of one side of the curriculum, which is either for training or held out.

    Args:
        roles: the workers that cover at least two domains each.
        topics: the narrow fields among `domains`, with fewer texts. Only the training side has them.
    """

    domains: Mapping[str, Domain]
    roles: Sequence[Role]
    generalists: Generalists
    joints: Joints
    topics: Sequence[Domain] = ()

    @property
    def fields(self) -> list[Domain]:
        """The domains without small talk and without topics."""
        excluded = {SMALL_TALK, *(topic.domain for topic in self.topics)}
        return [domain for domain in self.domains.values() if domain.domain not in excluded]

    def draw_fields(self, rng: random.Random) -> Sequence[Domain]:
        """Return the fields, or with probability `NARROW` the topics, if there are any."""
        return self.topics if self.topics and rng.random() < NARROW else self.fields


def field_of(domain: str) -> str:
    """Return the name of the field of a domain on either side."""
    side: Side = "held_out" if domain in load("held_out").domains else "train"  # topics are only in training
    return load(side).domains[domain].what


@cache
def load(side: Side) -> Materials:
    """Return the texts of one side. The training side has all topics, and nothing that is held out."""
    domains = [Domain.model_validate(_read(path)) for path in sorted((FOLDER / "domains").glob("*.yaml"))]
    roles = [Role.model_validate(each) for each in _read(FOLDER / "roles.yaml")]
    joints = Joints.model_validate(_read(FOLDER / "joints.yaml"))
    generalists = Generalists.model_validate(_read(FOLDER / "generalists.yaml"))
    side_domains = [
        _domain_of(domain, side)
        for domain in domains
        if side == "held_out" or domain.domain not in HELD_OUT_DOMAINS
    ]
    materials = Materials(
        {domain.domain: domain for domain in side_domains},
        [role for each in roles if (role := _role_of(each, side)) is not None],
        _texts_of(generalists, side, Generalists.model_fields),
        _texts_of(
            joints, side, ("chain", "join", "check", "check_subtasks", "openers", "closers")
        ).model_copy(
            update={"join_last": tuple(each for each in joints.join_last if split_of(each.text) == side)}
        ),
    )
    if side == "held_out":
        return materials
    return _with_topics(_with_joints(_with_requests(_with_cards(materials))), _read_topics())


def _with_cards(materials: Materials) -> Materials:
    """Add the training cards, because the few others of a field alone would be learned by heart."""
    more = {path.stem: _read(path) for path in sorted((FOLDER / "cards").glob("*.yaml"))}

    def add(item: Described, name: str, kind: str) -> Described:
        return item.model_copy(update={"cards": (*item.cards, *more[kind].get(name, ()))})

    generalists = materials.generalists
    return replace(
        materials,
        domains={name: add(domain, name, "domains") for name, domain in materials.domains.items()},
        roles=[add(role, role.role, "roles") for role in materials.roles],
        generalists=generalists.model_copy(
            update={
                kind: (*getattr(generalists, kind), *texts) for kind, texts in more["generalists"].items()
            }
        ),
    )


def _with_requests(materials: Materials) -> Materials:
    """Add the requests that are only for training, for the same reason as the cards."""

    def add(domain: Domain, more: FieldRequests) -> Domain:
        return domain.model_copy(
            update={
                name: (*getattr(domain, name), *getattr(more, name)) for name in FieldRequests.model_fields
            }
        )

    more = {
        path.stem: FieldRequests.model_validate(_read(path))
        for path in sorted((FOLDER / "requests").glob("*.yaml"))
    }
    return replace(
        materials,
        domains={
            name: add(domain, more[name]) if name in more else domain
            for name, domain in materials.domains.items()
        },
    )


def _with_joints(materials: Materials) -> Materials:
    """Add the training templates. With only forty of each kind, a model planned joins in new words badly."""
    joints = materials.joints.model_dump()
    for path in sorted((FOLDER / "joints").glob("*.yaml")):
        for kind, texts in _read(path).items():
            joints[kind] = [*joints.get(kind, ()), *texts]
    return replace(materials, joints=Joints.model_validate(joints))


def _read_topics() -> list[Domain]:
    files = sorted((FOLDER / "topics").glob("*.yaml"))
    return [Domain.model_validate(each) for path in files for each in _read(path)]


def _with_topics(materials: Materials, topics: Sequence[Domain]) -> Materials:
    """Add topics to the domains, and make `near` symmetric, so that no two workers might do a part."""
    near: dict[str, set[str]] = defaultdict(set)
    for topic in topics:
        for other in topic.near:
            near[topic.domain].add(other)
            near[other].add(topic.domain)
    domains = {
        each.domain: each.model_copy(update={"near": tuple(sorted({*each.near, *near[each.domain]}))})
        for each in (*materials.domains.values(), *topics)
    }
    roles = [
        role.model_copy(
            update={"near": tuple(sorted({*role.near, *(n for name in role.domains for n in near[name])}))}
        )
        for role in materials.roles
    ]
    return replace(materials, domains=domains, roles=roles, topics=[domains[each.domain] for each in topics])


def _read(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506


def _keep(texts: Sequence[str], side: Side) -> tuple[str, ...]:
    return tuple(text for text in texts if split_of(text) == side)


def _domain_of(domain: Domain, side: Side) -> Domain:
    if domain.domain in HELD_OUT_DOMAINS:
        return domain
    return domain.model_copy(
        update={
            "cards": _keep(domain.cards, side),
            "phrasings": _keep(domain.phrasings, side),
            "conversations": tuple(turns for turns in domain.conversations if split_of(turns[-1]) == side),
            "parts": _keep(domain.parts, side),
            "then": _keep(domain.then, side),
        }
    )


def _role_of(role: Role, side: Side) -> Role | None:
    """Return the role on one side, or None. In training it has the trained domains. It is held out if at
    least half of its domains are, or if fewer than two remain.
    """
    domains = tuple(name for name in role.domains if name not in HELD_OUT_DOMAINS)
    is_trained = 2 * len(domains) > len(role.domains) and len(domains) > 1
    if side == "held_out":
        return role.model_copy(update={"cards": _keep(role.cards, side)}) if is_trained else role
    return (
        role.model_copy(update={"domains": domains, "cards": _keep(role.cards, side)}) if is_trained else None
    )


def _texts_of(model: Model, side: Side, fields: Iterable[str]) -> Model:
    return model.model_copy(update={name: _keep(getattr(model, name), side) for name in fields})
