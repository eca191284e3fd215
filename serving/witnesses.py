"""The parties that call a worker, and the evidence of its errors.

`Witnesses` decides whether an error affects all callers or only the prompts of one party.

A party is a team with all its keys, or a key without a team. An error affects all callers if it occurs in
calls of two parties. If only one party calls the worker, two of its prompts are enough. If keys are turned
off, there are no parties to protect from each other, and one call is enough.
"""

import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from conductor.model.call import Call

TRAFFIC_S = 10.0
"""Seconds after its last call during which a party counts as a caller."""
MEMORY_S = 120.0
"""Seconds for which an event counts as evidence."""
MOST = 100
"""Maximum number of stored parties, and of stored witnesses of each event. More would add no evidence."""
OFTEN = 6
"""Number of times that an event must occur with the same prompt to count as evidence, if only one party calls
the worker.
"""

T = TypeVar("T")


class Witness(NamedTuple):
    """Party and prompt of a call in which an event, such as an error, occurred."""

    party: str
    """See `Terms.tenant`."""
    prompt: int
    """Hash of the prompt."""


def witness_of(call: Call) -> Witness:
    return Witness(call.terms.tenant, hash(tuple(message.text for message in call.messages)))


class Traffic:
    """Parties that have called a worker recently."""

    def __init__(self) -> None:
        self._called_at_s: dict[str, float] = {}
        """Time of each party's last call (`time.monotonic`), newest last."""

    def note(self, party: str) -> None:
        _note(self._called_at_s, party, MEMORY_S)

    def others(self, party: str, within_s: float = TRAFFIC_S) -> Iterator[str]:
        """Yield the other parties that have called within `within_s` seconds."""
        now_s = time.monotonic()
        return (
            each for each, at_s in self._called_at_s.items() if each != party and now_s - at_s <= within_s
        )

    def has_others(self, party: str) -> bool:
        """Return whether another party calls the worker too."""
        return any(True for _ in self.others(party))


class Witnesses:
    """Recent events at one worker, and the calls in which they occurred. Not thread-safe."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self._witnesses: dict[str, dict[Witness, float]] = {}
        """Calls in which each event occurred, with the time of its last occurrence (`time.monotonic`), newest
        last."""
        self._times = Counter[str]()
        """Number of occurrences of each event since the last one in a new call."""

    def tell(self, what: str, witness: Witness, *, is_clear: bool = True) -> bool:
        """Record an event, and return whether it probably affects all callers.

        Args:
            what: kind of event, such as the type of an error.
            witness: party and prompt of the call.
            is_clear: whether one call is enough evidence if keys are turned off.
        """
        witnesses = self._witnesses.setdefault(what, {})
        _drop_old(witnesses, MEMORY_S)
        self._times[what] = self._times[what] + 1 if witness in witnesses else 1
        _note(witnesses, witness, MEMORY_S)
        if (is_clear and not witness.party) or len({each.party for each in witnesses}) > 1:
            return True
        is_alone = not self.traffic.has_others(witness.party)
        return is_alone and (len(witnesses) > 1 or self._times[what] >= OFTEN)

    def forget(self, what: str) -> None:
        """Forget the recorded occurrences of an event, because its cause is gone.

        Args:
            what: kind of event.
        """
        self._witnesses.pop(what, None)
        self._times.pop(what, None)


def _note(times: dict[T, float], key: T, max_age_s: float) -> None:
    times.pop(key, None)
    times[key] = time.monotonic()
    _drop_old(times, max_age_s)


def _drop_old(times: dict[T, float], max_age_s: float) -> None:
    now_s = time.monotonic()
    while len(times) > MOST or (times and now_s - times[next(iter(times))] > max_age_s):
        del times[next(iter(times))]
