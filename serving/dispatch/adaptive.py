"""Adaptive limit of a worker's concurrent calls, learned from its responses.

Additive increase, multiplicative decrease, as in TCP (https://www.rfc-editor.org/rfc/rfc5681, section 3.1):

- Increase: one more slot if all slots are in use and first tokens arrive as usual.
- Decrease: a fifth fewer slots if the worker returns busy, or if first tokens take twice as long as the best
  time.
- Rollback: a decrease that did not make first tokens faster is undone, because they are late for another
  reason, such as longer prompts.
- Recovery after busy: one more slot per answered call, up to the earlier limit (slow start, section 3.1). If
  the worker is busy again before that, the earlier limit is lowered.

A tenant that sends longer prompts for a while looks like an overloaded worker. Therefore each tenant has one
vote, however many calls it makes: the median over all tenants decides on a decrease, and first tokens must
become faster for most tenants after it. A tenant that is the only caller can take away at most three quarters
of the slots. The first call of another tenant whose first token is not late restores them. The code calls a
tenant a party (`serving/witnesses.py`).
"""

import time
from collections.abc import Mapping, Sequence
from math import inf
from statistics import median_low

from conductor.model.call import Call
from conductor.model.terms import Terms
from serving.dispatch.limiter import Limiter
from serving.witnesses import Witnesses, witness_of

CUT = 0.8
LATE = 2.0
"""Multiple of the best time from which first tokens are late."""
LEAST_LATE_S = 0.05
"""Minimum time in seconds from which first tokens are late."""
LOWER_EVERY_S = 1.0
"""Minimum interval between reductions of the limit that `Slots` recovers to. A short busy period says little
about that limit.
"""
HELPED = 0.9
"""First tokens count as faster after a decrease if they take at most this share of the time before it."""
WINDOW = 10
"""Minimum number of calls in a window, whose first tokens are judged together. With more slots than that, a
window has as many calls as there are slots.
"""
LEAST_ALONE = 0.25
"""Minimum share of the slots that remains if the first tokens of only one tenant are late."""
FORGET = 1.02
"""Factor by which the best time may rise after each window of calls that found a free slot, so that the best
time of an idle night does not last. Calls that took the last slot never raise the best time, because they may
wait in a queue of the worker itself.
"""


class Slots:
    """Number of slots that is learned from the worker's responses.

    Args:
        most: maximum number of slots, and the number at the start.
    """

    def __init__(self, most: int) -> None:
        self._most, self._limit = most, float(most)
        self._good, self._lowered_s = float(most), -inf
        """Limit to recover to, from before the worker was busy, and the time at which it was last lowered."""
        self._has_grown = False
        """True if the limit was raised since the last decrease and is below the maximum."""
        self._first_token_s: dict[str, list[float]] = {}
        """Times to the first token in the current window, by tenant."""
        self._quiet_s: list[float] = []
        """Times to the first token of calls that were sent while slots were free."""
        self._best_s = inf
        self._before_cut: tuple[float, dict[str, list[float]]] | None = None
        """Limit and times to the first token before the last decrease for late first tokens."""
        self._doubted: tuple[str, float] | None = None
        """Tenant whose calls alone caused the last decrease, and the limit before that decrease."""
        self._cut_s = -inf
        """Time (`time.monotonic`) of the last decrease. Calls sent before it are not judged."""

    @property
    def n(self) -> int:
        """Current number of slots, at least 1."""
        return max(1, int(self._limit))

    def refuse(self, sent_s: float) -> None:
        """Count a busy response to a call that was sent at `sent_s` (`time.monotonic`)."""
        if sent_s <= self._cut_s:
            return
        now_s = time.monotonic()
        if self._has_grown and now_s - self._lowered_s >= LOWER_EVERY_S:
            self._good, self._lowered_s = max(1.0, self._good * CUT), now_s
        self._cut()

    def speak(self, sent_s: float, first_token_s: float, *, is_full: bool, party: str = "") -> None:
        """Count the first token of a call.

        Args:
            sent_s: time at which the call was sent (`time.monotonic`).
            first_token_s: seconds until the first token.
            is_full: whether all slots were in use when the call was sent.
            party: tenant of the call, or "" if keys are off.
        """
        if not is_full:
            self._quiet_s.append(first_token_s)
            if len(self._quiet_s) >= WINDOW:
                self._best_s = min(self._best_s * FORGET, median_low(self._quiet_s))
                self._quiet_s.clear()
        elif sent_s > self._cut_s:
            if first_token_s < self._late_s:
                self._grow_back(party)
            self._first_token_s.setdefault(party, []).append(first_token_s)
            if sum(map(len, self._first_token_s.values())) >= max(WINDOW, self.n):
                self._judge()

    @property
    def _late_s(self) -> float:
        return max(LATE * self._best_s, LEAST_LATE_S)

    def _grow_back(self, party: str) -> None:
        if self._doubted and self._doubted[0] != party:
            self._good, self._doubted = max(self._good, self._doubted[1]), None
        if self._limit < self._good:
            self._limit, self._has_grown = min(self._good, self._limit + 1), True

    def _judge(self) -> None:
        by_party, self._first_token_s = self._first_token_s, {}
        median_s = median_low(map(median_low, by_party.values()))
        self._best_s = min(self._best_s, median_s)
        if median_s < self._late_s:
            self._before_cut, self._has_grown = None, self._limit < self._most
            self._limit = min(self._most, self._limit + 1)
            self._good = max(self._good, self._limit)
        elif self._before_cut and not _are_sooner(self._before_cut[1], by_party):
            self._limit, self._best_s = self._before_cut[0], median_s
            self._before_cut = None
        else:
            self._cut_late(by_party)

    def _cut_late(self, by_party: dict[str, list[float]]) -> None:
        only = next(iter(by_party)) if len(by_party) == 1 else ""
        if only and self._limit * CUT < self._most * LEAST_ALONE:
            return
        self._doubted = (only, self._doubted[1] if self._doubted else self._good) if only else None
        self._before_cut = self._limit, by_party
        self._cut()
        self._good = min(self._good, self._limit)

    def _cut(self) -> None:
        self._limit = max(1.0, self._limit * CUT)
        self._first_token_s.clear()
        self._cut_s, self._has_grown = time.monotonic(), False


def _are_sooner(before: Mapping[str, Sequence[float]], now: Mapping[str, Sequence[float]]) -> bool:
    """Return whether first tokens became faster for most tenants.

    Each tenant with calls in both windows has one vote. All other tenants share one vote.
    """
    both = before.keys() & now.keys()
    pairs = [(before[each], now[each]) for each in both]
    others = [
        [s for each, some in calls.items() if each not in both for s in some] for calls in (before, now)
    ]
    if all(others):
        pairs.append((others[0], others[1]))
    sooner = [median_low(after) <= HELPED * median_low(first) for first, after in pairs]
    return 2 * sum(sooner) > len(sooner)


class AdaptiveLimiter(Limiter):
    """Limiter that learns how many calls the worker can handle at once. `slots` is the maximum."""

    def __init__(self, name: str, slots: int, max_wait_s: float = inf) -> None:
        super().__init__(name, slots, max_wait_s)
        self.learned = Slots(slots)
        self.witnesses = Witnesses()
        """Tenants whose calls the worker rejected as busy."""

    def on_sent(self, terms: Terms) -> None:
        """See `Limiter.on_sent`."""
        self.witnesses.traffic.note(terms.tenant)

    def on_first_token(self, terms: Terms, sent_s: float, *, was_full: bool) -> None:
        """See `Limiter.on_first_token`."""
        first_token_s = time.monotonic() - sent_s
        self.learned.speak(sent_s, first_token_s, is_full=was_full, party=terms.tenant)
        self._resize()

    def on_busy(self, call: Call, sent_s: float) -> None:
        """See `Limiter.on_busy`."""
        if self.witnesses.tell("busy", witness_of(call)):
            self.learned.refuse(sent_s)
            self._resize()

    def _resize(self) -> None:
        if self.n_slots != (n := self.learned.n):
            self.resize(n)
