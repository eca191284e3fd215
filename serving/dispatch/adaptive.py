"""How many calls at once a worker can take, found out from how it answers.

Additive increase, multiplicative decrease, as TCP has it: https://www.rfc-editor.org/rfc/rfc5681, section 3.1. A
worker is sent one more where all its slots are in use and its first tokens come as they do; a fifth less
where it says that it is busy, or its first tokens take twice as long as they did at their best. A cut that did not
make them sooner is taken back: they are late for another reason, such as longer prompts.

Whoever sends a few prompts that are longer, and then a little less so, looks like that too. So each party
(`serving/witnesses.py`) has one voice, however many calls it makes: most have to be late, and most to be answered sooner
after a cut. One that calls alone takes no more than three quarters of the slots, and they are given back with the first
call of another that is not late.

After it was busy, it is sent one more with each call that is answered, up to what it took before (slow start, section 3.1
too); where it is busy again on the way there, it took less than that.
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
"""Times the best: first tokens are late."""
LEAST_LATE_S = 0.05
"""Sooner than this nobody minds."""
LOWER_EVERY_S = 1.0
"""What it took before is lowered no faster than this: a short time in which it is busy says little of it."""
HELPED = 0.9
"""Of the time before a cut: first tokens come sooner since."""
WINDOW = 10
"""At least so many calls are judged together; as many as there are slots, where these are more."""
LEAST_ALONE = 0.25
"""Of all slots: so many are left where only one party says that first tokens are late."""
FORGET = 1.02
"""What the best is multiplied by with each window of quiet calls, so that it is not for ever that of an idle night.
Calls beside full slots may wait in a line of the worker's that we let grow, so they never raise it."""


class Slots:
    """How many calls at once, learned call by call.

    Args:
        most: never more than these; where it begins.
    """

    def __init__(self, most: int) -> None:
        self._most, self._limit = most, float(most)
        self._good, self._lowered_s = float(most), -inf
        """What it took before it was busy, and when that was last lowered."""
        self._has_grown = False
        """Since it was last busy, or has taken all that there are for a while."""
        self._first_token_s: dict[str, list[float]] = {}
        """Of the calls that are judged together, by party."""
        self._quiet_s: list[float] = []
        """Of calls that were sent while slots were free."""
        self._best_s = inf
        self._before_cut: tuple[float, dict[str, list[float]]] | None = None
        """The limit and the first tokens' times when slots were last cut for being late."""
        self._doubted: tuple[str, float] | None = None
        """Who alone was late when slots were cut, and what the worker took before."""
        self._cut_s = -inf
        """When slots were last cut, by `time.monotonic`: calls sent before say nothing of those that are left."""

    @property
    def n(self) -> int:
        """So many, at least one."""
        return max(1, int(self._limit))

    def refuse(self, sent_s: float) -> None:
        """A call that was sent then was refused, because the worker is busy."""
        if sent_s <= self._cut_s:
            return
        now_s = time.monotonic()
        if self._has_grown and now_s - self._lowered_s >= LOWER_EVERY_S:
            self._good, self._lowered_s = max(1.0, self._good * CUT), now_s
        self._cut()

    def speak(self, sent_s: float, first_token_s: float, *, is_full: bool, party: str = "") -> None:
        """A call of `party` (empty: keys are off) that was sent then, while all slots were in use or not, got its first
        token after so long.
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
    """Whether most first tokens come sooner than before: by each party that called both times, and all others as one."""
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
    """As many slots as the worker can take, and no more than `slots`."""

    def __init__(self, name: str, slots: int, max_wait_s: float = inf) -> None:
        super().__init__(name, slots, max_wait_s)
        self.learned = Slots(slots)
        self.witnesses = Witnesses()
        """Of busy times."""

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
