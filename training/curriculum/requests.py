"""Requests that fit a team, in the words of a user, with their parts and their best plan.

Kinds:
    one: a single part.
    small_talk: a single part of small talk.
    chain: the second part uses the first one's result.
    join: two independent parts, and a third that uses both results.
    check: a part, and another worker's check of its result.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from conductor.plan.plan import Step
from training.curriculum.materials import SMALL_TALK, Domain, Materials, field_of
from training.curriculum.teams import CHECKS_WELL, TRIES, DrawnTeam

Kind = Literal["one", "small_talk", "chain", "join", "check"]
SHARES: dict[Kind, float] = {"one": 0.5, "small_talk": 0.08, "chain": 0.14, "join": 0.08, "check": 0.2}
"""Probability of each kind of request. If the team cannot do it, the request has one part."""
LEARNED_SHARES: dict[Kind, float] = {
    "one": 0.22,
    "small_talk": 0.08,
    "chain": 0.22,
    "join": 0.22,
    "check": 0.26,
}
"""The same in training, where kinds with several parts are more frequent, as they need more examples."""
CONVERSATIONS = 0.12
"""Share of conversations among the requests of one part."""
WITHOUT_SPECIALIST = 0.15
"""Share of the requests of one part that only a generalist covers, if the team has one."""
RESULT = ("it", "it", "the result", "that", "what comes out", "what you get")
"""Words by which a clause refers to the result of another step."""
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class RequestPart:
    """One task within a request.

    Args:
        clause: the clause of the request, or "" if the part is the whole request.
        reads: the indices of the parts whose results it uses.
        checks: whether it checks the part that it reads.
    """

    domain: str
    clause: str = ""
    reads: tuple[int, ...] = ()
    checks: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """Request of a user, and its parts.

    Args:
        turns: the alternating turns of user and assistant. The first and the last are the user's.
        parts: the parts, in an order in which they can be done. The result of the last one is the answer.
    """

    kind: Kind
    turns: tuple[str, ...]
    parts: tuple[RequestPart, ...]

    @property
    def text(self) -> str:
        return self.turns[-1]


def draw_request(
    rng: random.Random, materials: Materials, team: DrawnTeam, shares: Mapping[Kind, float] = SHARES
) -> Request:
    kinds: dict[Kind, Callable[[], Request | None]] = {
        "one": lambda: _one(rng, materials, team),
        "small_talk": lambda: _small_talk(rng, materials),
        "chain": lambda: _chain(rng, materials, team),
        "join": lambda: _join(rng, materials, team),
        "check": lambda: _check(rng, materials, team),
    }
    (kind,) = rng.choices(list(shares), list(shares.values()))
    request = kinds[kind]() or _one(rng, materials, team)
    assert request is not None, "a team without a specialist has a generalist"
    return request


def draw_short(draw: Callable[[], Request], longest: int | None) -> Request:
    """Call `draw` until a request has at most `longest` characters, at most `TRIES` times more."""
    request = draw()
    for _ in range(TRIES):
        if longest is None or sum(map(len, request.turns)) <= longest:
            break
        request = draw()
    return request


def best_plan(rng: random.Random, request: Request, team: DrawnTeam) -> list[Step]:
    """Return a random one of the best plans, with workers as numbers. A single step has no subtask: the
    worker gets the user's own words.
    """
    steps: list[Step] = []
    for part in request.parts:
        worker = rng.choice(best_workers(part, team, [int(step.worker) for step in steps]))
        subtask = part.clause if len(request.parts) > 1 else ""
        needs = f"checking {field_of(part.domain)}" if part.checks else field_of(part.domain)
        steps.append(Step(str(worker), subtask, part.reads, needs))
    return steps


def best_workers(part: RequestPart, team: DrawnTeam, before: Sequence[int] = ()) -> list[int]:
    """Return the best workers for `part`, or [] if no worker can do it. See `part_rewards`."""
    rewards = part_rewards(part, team, before)
    top = max(rewards)
    return [index for index, each in enumerate(rewards) if each == top > 0]


def part_rewards(part: RequestPart, team: DrawnTeam, before: Sequence[int] = ()) -> tuple[float, ...]:
    """Return the reward of each worker for `part`, after the workers `before`. Without a critic, a check is
    for an able worker that has not done the part.
    """
    rewards = team.rewards(part.domain)
    if not part.checks:
        return rewards
    if team.critics:
        return tuple(
            1.0 if mate.kind == "critic" else 0.3 * each
            for mate, each in zip(team.mates, rewards, strict=True)
        )
    return tuple(
        0.0 if index in before or mate.quality(part.domain) < CHECKS_WELL else each
        for index, (mate, each) in enumerate(zip(team.mates, rewards, strict=True))
    )


def fill(rng: random.Random, template: str, slots: Mapping[str, Sequence[str]]) -> str:
    """Fill each `{name}` in `template` with a random value; the same name always gets the same value."""
    values = {
        name: rng.choice(slots[name]) for name in dict.fromkeys(_SLOT.findall(template)) if name in slots
    }
    return _SLOT.sub(lambda match: values.get(match[1], match[0]), template)


def _one(rng: random.Random, materials: Materials, team: DrawnTeam) -> Request:
    return request_about(rng, materials, materials.domains[_topic(rng, materials, team)])


def request_about(rng: random.Random, materials: Materials, domain: Domain) -> Request:
    """Draw a request of one part about `domain`. The team may have no worker for it."""
    if domain.domain == SMALL_TALK:
        return _small_talk(rng, materials)
    if domain.conversations and rng.random() < CONVERSATIONS:
        turns = tuple(fill(rng, turn, domain.slots) for turn in rng.choice(domain.conversations))
        return Request("one", turns, (RequestPart(domain.domain),))
    text = fill(rng, rng.choice(domain.phrasings), domain.slots)
    return Request("one", (_in_a_tone(rng, materials, text),), (RequestPart(domain.domain),))


def _topic(rng: random.Random, materials: Materials, team: DrawnTeam) -> str:
    """Draw a domain that the team can do. In most cases, it is one of a specialist's domains."""
    covered = [name for name in team.topics if name in materials.domains and name != SMALL_TALK]
    others = [
        each.domain
        for each in materials.draw_fields(rng)
        if each.domain not in team.claims and team.best(each.domain)
    ]
    if others and (not covered or rng.random() < WITHOUT_SPECIALIST):
        return rng.choice(others)
        # Specialists are equally likely, whatever their number of domains.
    by_mate = [sorted(mate.can & set(covered)) for mate in team.mates if mate.can & set(covered)]
    return rng.choice(rng.choice(by_mate)) if by_mate else rng.choice(materials.fields).domain


def _small_talk(rng: random.Random, materials: Materials) -> Request:
    domain = materials.domains[SMALL_TALK]
    return Request(
        "small_talk", (fill(rng, rng.choice(domain.phrasings), domain.slots),), (RequestPart(SMALL_TALK),)
    )


def _chain(rng: random.Random, materials: Materials, team: DrawnTeam) -> Request | None:
    first = _clause(rng, materials, team, ())
    second = first and _clause(rng, materials, team, (first,), then=True)
    if not first or not second:
        return None
    text = _join_clauses(rng.choice(materials.joints.chain), a=first.clause, b=second.clause)
    return Request("chain", (_in_a_frame(rng, materials, text),), (first, second))


def _join(rng: random.Random, materials: Materials, team: DrawnTeam) -> Request | None:
    first = _clause(rng, materials, team, ())
    second = first and _clause(rng, materials, team, (first,))
    joints, disputed = materials.joints, team.disputed
    lasts = [
        each
        for each in joints.join_last
        if each.domain in materials.domains and each.domain not in disputed and team.best(each.domain)
    ]
    if not first or not second or not lasts:
        return None
    specialist = [each for each in lasts if each.domain in team.topics]
    last = rng.choice(specialist or lasts)
    third = RequestPart(last.domain, fill(rng, last.text, joints.slots), (0, 1))
    text = _join_clauses(rng.choice(joints.join), a=first.clause, b=second.clause, j=third.clause)
    return Request("join", (_in_a_frame(rng, materials, text),), (first, second, third))


def _check(rng: random.Random, materials: Materials, team: DrawnTeam) -> Request | None:
    first = _clause(rng, materials, team, ())
    if not first:
        return None
    subtask = _join_clauses(rng.choice(materials.joints.check_subtasks), a=first.clause)
    check = RequestPart(first.domain, subtask, (0,), checks=True)
    doers = set(team.best(first.domain))
    if not best_workers(check, team, tuple(doers)):
        return None
    text = _join_clauses(rng.choice(materials.joints.check), a=first.clause)
    return Request("check", (_in_a_frame(rng, materials, text),), (first, check))


def _clause(
    rng: random.Random,
    materials: Materials,
    team: DrawnTeam,
    before: tuple[RequestPart, ...],
    *,
    then: bool = False,
) -> RequestPart | None:
    """Draw a part whose best workers are not the best for any in `before`, or return None."""
    busy = {index for part in before for index in team.best(part.domain)}
    topics, disputed = set(team.topics), team.disputed
    usable = [
        each
        for each in (*materials.fields, *materials.topics)
        if each.domain not in disputed
        and (each.then if then else each.parts)
        and (best := team.best(each.domain))
        and busy.isdisjoint(best)
    ]
    covered = [each for each in usable if each.domain in topics]
    fields = {each.domain for each in materials.draw_fields(rng)}
    uncovered = [each for each in usable if each.domain not in topics]
    others = [each for each in uncovered if each.domain in fields] or uncovered
    if not usable:
        return None
    domain = rng.choice(covered if covered and (not others or rng.random() >= WITHOUT_SPECIALIST) else others)
    clause = fill(rng, rng.choice(domain.then if then else domain.parts), domain.slots)
    return RequestPart(domain.domain, clause.replace("{it}", rng.choice(RESULT)), (0,) if then else ())


def _join_clauses(template: str, **clauses: str) -> str:
    """Fill the clauses into `template`. If a name is in upper case, its clause is capitalised."""
    texts = clauses | {name.upper(): clause[:1].upper() + clause[1:] for name, clause in clauses.items()}
    return _SLOT.sub(lambda match: texts.get(match[1], match[0]), template)


def _in_a_frame(rng: random.Random, materials: Materials, text: str) -> str:
    """Sometimes add a greeting before the text, or thanks after it."""
    if rng.random() < 0.15:
        text = f"{rng.choice(materials.joints.openers)} {text}"
    if rng.random() < 0.15:
        text = f"{text} {rng.choice(materials.joints.closers)}"
    return text


def _in_a_tone(rng: random.Random, materials: Materials, text: str) -> str:
    """Sometimes frame the text, write it in lower case, or add typing errors."""
    text = _in_a_frame(rng, materials, text)
    if rng.random() < 0.12:
        text = text.lower()
    return _add_slips(rng, text) if rng.random() < 0.08 else text


def _add_slips(rng: random.Random, text: str) -> str:
    """Drop, double or swap letters at random, about one letter in thirty."""
    typed: list[str] = []
    letters = list(text)
    while letters:
        letter = letters.pop(0)
        if not letter.isalpha() or rng.random() >= 1 / 30:
            typed.append(letter)
        elif (slip := rng.randrange(3)) == 1:
            typed += [letter, letter]
        elif slip == 2 and letters and letters[0].isalpha():
            typed += [letters.pop(0), letter]
    return "".join(typed)
