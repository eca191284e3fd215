"""How the newest calls of each worker ended, and how soon they said something.

`serving/dispatch/target.py` fills it, once for each call as it is sent: waits for a slot or a retry do not
count. The gauges of `serving/sessions/service.py` read it. Knows no pool and no wire, and not how other replicas
are heard of (`serving/runs/shared_circuits.py`).
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

from serving.witnesses import Witnesses

FAILURES_BEFORE_REST = 3
FIRST_REST_S = 5.0
MOST_REST_S = 8.0
"""After so many failures in a row it is left alone for a while. A worker that recovers is used again within 10 s,
since a probe is due at least this often."""
MOST_ASKED_REST_S = 300.0
"""As long as it may ask to be left alone."""
PROBE_S = 8.0
"""So long the answer to a probe is waited for, before another call may probe: one that hangs says nothing of a worker
that has recovered meanwhile."""
RECENT_S = 10.0
"""So long a whole answer counts for more than what other replicas say of a worker, unless a call has failed since."""
OUT_S = 30.0
"""So long after its newest failure a worker that fails counts as one that does not answer, for `/readyz`."""
Circuit = Literal["closed", "half_open", "open"]
"""`open`: its newest calls failed, and it is left alone where another can be asked; `half_open`: the next call
finds out whether it is well again."""
FAILED = "failed"
"""What witnesses are told of a worker that is down or silent, until it answers."""
WINDOW = 200
"""Shares and quantiles are of so many of the newest calls."""


class Identity(NamedTuple):
    """What makes a worker the same one after a change of settings. With another model or address it is a new
    one, whatever its name.
    """

    name: str
    kind: str
    model: str
    address: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a call to a worker failed.

    Args:
        error: the class of the error, such as `WorkerRefused`.
        message: for callers.
        detail: for operators; empty if no text of the run may be kept.
        at_s: when, in seconds since 1970.
    """

    error: str
    message: str
    detail: str = ""
    at_s: float = field(default_factory=time.time)

    @property
    def story(self) -> str:
        """The error and its message, for callers."""
        return f"{self.error}: {self.message}"


def _newest_outcomes() -> deque[bool]:
    return deque(maxlen=WINDOW)


def _newest_seconds() -> deque[float]:
    return deque(maxlen=WINDOW)


@dataclass(frozen=True, slots=True)
class Opening:
    """A circuit that a replica has opened, by this process's `time.monotonic`.

    Args:
        since_s: when it opened; a probe that fails does not change that.
        until_s: when the next probe is due.
    """

    since_s: float
    until_s: float


@dataclass(slots=True, eq=False, weakref_slot=True)
class WorkerHealth:
    """One worker's newest calls. Calls that say nothing of the worker are not counted: their clients left,
    or it refused that one prompt.

    One event loop writes it; any thread may read it.
    """

    failures_in_a_row: int = 0
    """Newest calls that failed; 0 once one succeeds."""
    rests_until_s: float = 0.0
    """Until then it is better left alone, by `time.monotonic`, where another one can be asked."""
    spoke_at_s: float = 0.0
    """When the newest first token came, by `time.monotonic`."""
    succeeded_at_s: float = -inf
    """When the newest whole answer came, likewise."""
    opening: Opening | None = None
    """Of the circuit, by calls of this replica."""
    elsewhere: Sequence[Opening] = ()
    """What other replicas have open of it now."""
    witnesses: Witnesses = field(default_factory=Witnesses)
    """Of its failures, busy times and refusals."""
    first_fault: Fault | None = None
    """Why the first call failed since the newest whole answer; the later ones may only follow from it."""
    newest_fault: Fault | None = None
    """Why the newest one failed."""
    refuses: bool = False
    """It has refused a call as it would refuse every one, such as for its key, and has not answered since."""
    _rests: int = 0
    """In a row, that failures have begun."""
    _probes_until_s: float = 0.0
    """A probe is under way, and is waited for until then."""
    _outcomes: deque[bool] = field(default_factory=_newest_outcomes)
    _first_token_s: deque[float] = field(default_factory=_newest_seconds)
    _pause_s: deque[float] = field(default_factory=_newest_seconds)

    def speak(self, first_token_s: float) -> None:
        """Count a first token, so many seconds after its call was sent."""
        self._first_token_s.append(first_token_s)
        self.spoke_at_s = time.monotonic()

    def pause(self, longest_s: float) -> None:
        """Count the longest pause between two words of a whole answer."""
        self._pause_s.append(longest_s)

    def succeed(self) -> None:
        """Count a whole answer. It ends a rest that failures have begun, and none that the worker asked for."""
        if self.circuit != "closed":
            self.rests_until_s = 0.0
        self.failures_in_a_row, self.opening = 0, None
        self.first_fault, self.newest_fault, self.refuses = None, None, False
        self._rests, self._probes_until_s = 0, 0.0
        self.witnesses.forget(FAILED)
        self.succeeded_at_s = time.monotonic()
        self._outcomes.append(True)

    def fail(
        self, rest_s: float = 0.0, *, for_all: bool = True, fault: Fault | None = None, refuses: bool = False
    ) -> None:
        """Count a call that the worker failed; by what it said it is better left alone for `rest_s`. It opens the circuit
        where that is so `for_all` keys (`Witnesses`).

        One that was under way when the circuit opened says nothing new, and makes no rest longer: else many that end
        together would look like as many failed probes.
        """
        self.first_fault, self.newest_fault = self.first_fault or fault, fault or self.newest_fault
        self.refuses |= refuses
        now_s = time.monotonic()
        is_news = self.circuit != "open" or now_s < self._probes_until_s
        self._probes_until_s = 0.0
        self.failures_in_a_row += 1
        self._outcomes.append(False)
        rest_s = min(rest_s, MOST_ASKED_REST_S)
        opens = self.failures_in_a_row >= FAILURES_BEFORE_REST and for_all
        if is_news and (opens or self.is_open_elsewhere):
            rest_s = max(rest_s, min(MOST_REST_S, FIRST_REST_S * 2.0 ** min(self._rests, 8)))
            self._rests += 1
        self.rests_until_s = max(self.rests_until_s, now_s + rest_s)
        if opens:
            since_s = self.opening.since_s if self.opening else now_s
            self.opening = Opening(since_s, self.rests_until_s)

    def rest(self, rest_s: float) -> None:
        """It cannot be asked for so long, for no fault of its own."""
        self.rests_until_s = max(self.rests_until_s, time.monotonic() + min(rest_s, MOST_ASKED_REST_S))

    @property
    def circuit(self) -> Circuit:
        """Whether calls are sent to it where another worker can be asked."""
        if self.opening is None and not self.is_open_elsewhere:
            return "closed"
        return "open" if self.rest_s else "half_open"

    @property
    def is_failing(self) -> bool:
        """Whether its newest calls failed, here or at other replicas, and it has not answered since."""
        return self.refuses or self.circuit != "closed" or self.failures_in_a_row >= FAILURES_BEFORE_REST

    @property
    def is_out(self) -> bool:
        """Whether a call to it would fail now, for every key, as far as is known. Some time after the newest failure that is
        not known, so that a server that is sent nothing while it is not ready does not stay so.
        """
        is_for_all = self.refuses or self.circuit != "closed"
        if not is_for_all or (self.newest_fault and self.newest_fault.error == "WorkerBusy"):
            return False
        is_recent = self.newest_fault is not None and time.time() - self.newest_fault.at_s < OUT_S
        return self.rest_s > 0 or is_recent

    @property
    def is_open_elsewhere(self) -> bool:
        """Whether what another replica has open of it holds here; it may be open by our own calls as well."""
        return bool(self._openings_to_heed())

    def _openings_to_heed(self) -> Sequence[Opening]:
        """What holds here of `elsewhere`. A whole answer of our own since says that only the other's way to the worker
        is broken; one shortly before is taken to say so until a call fails here too.
        """
        if not self.elsewhere:
            return ()
        if not self.failures_in_a_row and time.monotonic() - self.succeeded_at_s < RECENT_S:
            return ()
        return [each for each in self.elsewhere if each.since_s > self.succeeded_at_s]

    def begin_call(self) -> float:
        """A call is about to be sent. Of a worker that may be well again it is the only one until it has
        ended, or has taken `PROBE_S`.

        Returns:
            Until when its answer is waited for, by `time.monotonic`, where it is that one; else 0.
        """
        if self.circuit != "half_open":
            return 0.0
        self._probes_until_s = time.monotonic() + PROBE_S
        return self._probes_until_s

    def end_call(self, probes_until_s: float) -> None:
        """The call has ended for which `begin_call` gave that. Where it was to find out whether the worker is well
        and has not, since its client left or its prompt was refused, the next one may at once.
        """
        if self._probes_until_s == probes_until_s:  # else it has, or another probes by now
            self._probes_until_s = 0.0

    @property
    def rest_s(self) -> float:
        """How long it is better left alone yet; 0: it can be asked."""
        until_s = max(
            [self.rests_until_s, self._probes_until_s, *(each.until_s for each in self._openings_to_heed())]
        )
        return max(0.0, until_s - time.monotonic())

    @property
    def successes(self) -> int:
        """How many of the newest calls got a whole answer."""
        return list(self._outcomes).count(True)

    @property
    def failures(self) -> int:
        """How many of the newest calls the worker failed."""
        return list(self._outcomes).count(False)

    @property
    def failure_share(self) -> float:
        """The part of the newest calls that failed; 0 without calls."""
        return self.failures / max(1, len(self._outcomes))

    @property
    def first_tokens(self) -> int:
        """Of how many calls the time to the first token is known."""
        return len(self._first_token_s)

    def first_token_s(self, quantile: float) -> float | None:
        """Seconds to the first token that this part of the newest calls stayed within (nearest rank); None
        without calls.
        """
        return _quantile(self._first_token_s, quantile)

    @property
    def pauses(self) -> int:
        """Of how many whole answers the longest pause is known."""
        return len(self._pause_s)

    def pause_s(self, quantile: float) -> float | None:
        """Likewise of the longest pauses between two words."""
        return _quantile(self._pause_s, quantile)


def _quantile(seconds: deque[float], quantile: float) -> float | None:
    """By nearest rank; None of nothing."""
    ordered = sorted(seconds)
    return ordered[max(0, ceil(quantile * len(ordered)) - 1)] if ordered else None


class Health:
    """The health of all workers of one process, across changes of the pool.

    A pool asks for its workers' by identity and holds them; what no pool holds any more is forgotten. So a
    pool that is built and then rejected changes nothing, and the last calls of a replaced worker do not
    count for the one that took its name.
    """

    def __init__(self) -> None:
        self._workers = WeakValueDictionary[Identity, WorkerHealth]()

    def of(self, worker: Identity) -> WorkerHealth:
        """What is known of `worker`; an empty one where no pool has it yet."""
        return self._workers.setdefault(worker, WorkerHealth())

    def workers(self) -> dict[Identity, WorkerHealth]:
        """All that a pool has."""
        return dict(self._workers)
