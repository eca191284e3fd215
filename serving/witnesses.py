"""Whether what goes wrong at a worker goes wrong for everybody, or for one key's prompts.

What closes a worker to all needs more than one witness: two parties; where one alone calls, two of its prompts. A
party is a team with all its keys, or a key without a team. Where keys are off there is nobody to protect, and one is
enough.
"""

import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from conductor.model.call import Call

TRAFFIC_S = 10.0
"""A party that has called within this time is one of those that call."""
MEMORY_S = 120.0
"""So long what somebody was told is evidence."""
MOST = 100
"""Of parties, and of witnesses, that are kept: more say nothing new."""
OFTEN = 6
"""So often one prompt is evidence too, where its party alone calls."""

T = TypeVar("T")


class Witness(NamedTuple):
    """Who was told something."""

    party: str
    """See `Terms.tenant`."""
    prompt: int
    """A hash of it."""


def witness_of(call: Call) -> Witness:
    """Who makes `call`."""
    return Witness(call.terms.tenant, hash(tuple(message.text for message in call.messages)))


class Traffic:
    """The parties that call a worker now."""

    def __init__(self) -> None:
        self._called_at_s: dict[str, float] = {}
        """By `time.monotonic`, the newest last."""

    def note(self, party: str) -> None:
        """It makes a call."""
        _note(self._called_at_s, party, MEMORY_S)

    def others(self, party: str, within_s: float = TRAFFIC_S) -> Iterator[str]:
        """The other ones that have called within that time."""
        now_s = time.monotonic()
        return (
            each for each, at_s in self._called_at_s.items() if each != party and now_s - at_s <= within_s
        )

    def has_others(self, party: str) -> bool:
        """Whether another one calls too."""
        return any(True for _ in self.others(party))


class Witnesses:
    """What calls to one worker were told lately. One event loop uses it."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self._told: dict[str, dict[Witness, float]] = {}
        """Of what was told: by whom, when; the newest last."""
        self._times = Counter[str]()
        """How often, since somebody was the first to be told in a while."""

    def tell(self, what: str, witness: Witness, *, is_clear: bool = True) -> bool:
        """`witness` was told `what`, or met with it.

        Args:
            what: such as the type of an error.
            witness: who.
            is_clear: whether one is enough where keys are off.

        Returns:
            Whether it is probably so for everybody.
        """
        told = self._told.setdefault(what, {})
        _drop_old(told, MEMORY_S)
        self._times[what] = self._times[what] + 1 if witness in told else 1
        _note(told, witness, MEMORY_S)
        if (is_clear and not witness.party) or len({each.party for each in told}) > 1:
            return True
        is_alone = not self.traffic.has_others(witness.party)
        return is_alone and (len(told) > 1 or self._times[what] >= OFTEN)

    def forget(self, what: str) -> None:
        """It is so no longer."""
        self._told.pop(what, None)
        self._times.pop(what, None)


def _note(times: dict[T, float], who: T, kept_s: float) -> None:
    times.pop(who, None)
    times[who] = time.monotonic()
    _drop_old(times, kept_s)


def _drop_old(times: dict[T, float], kept_s: float) -> None:
    now_s = time.monotonic()
    while len(times) > MOST or (times and now_s - times[next(iter(times))] > kept_s):
        del times[next(iter(times))]
