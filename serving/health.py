"""Health of each worker: outcomes and latencies of its newest calls, and its circuit breaker.

`serving/dispatch/target.py` counts each call when it is sent, without the time that it waits for a slot or a retry.
`serving/sessions/service.py` reads the gauges. `serving/store/shared_circuits.py` adds the circuits of other replicas.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

from serving.witnesses import Witnesses

FAILURES_BEFORE_OPEN = 3
FIRST_OPEN_S = 5.0
MAX_OPEN_S = 8.0
"""Maximum seconds between two probes, so that a worker that recovers is used within 10 s."""
MAX_RETRY_AFTER_S = 300.0
"""Maximum `Retry-After` in seconds: of a worker, after which it is called again, and of this server's errors."""
PROBE_S = 8.0
"""Seconds after which another call may probe, so that a hanging probe does not block recovery."""
RECENT_S = 10.0
"""Seconds after a complete answer here in which open circuits of other replicas are ignored."""
OUT_S = 30.0
"""Seconds after its newest failure during which `/readyz` reports a failing worker as down."""
Circuit = Literal["closed", "half_open", "open"]
"""State of a worker's circuit breaker.

- `closed`: the worker is called as usual.
- `open`: its newest calls failed. It is skipped if another worker can answer.
- `half_open`: the next call is a probe.
"""
FAILED = "failed"
"""Kind of event that `Witnesses` counts for a worker that is down or silent."""
WINDOW = 200
"""Number of newest calls from which shares and quantiles are computed."""


class Identity(NamedTuple):
    """Identity of a worker across settings. With another model or address it is a new one."""

    name: str
    kind: str
    model: str
    address: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Failure of a call to a worker, and its reason.

    Args:
        detail: detail for operators, or "" if no text of the run may be stored.
    """

    error: str
    message: str
    detail: str = ""
    at_s: float = field(default_factory=time.time)

    @property
    def description(self) -> str:
        """Name and message of the error, as one text for callers."""
        return f"{self.error}: {self.message}"


def _newest_outcomes() -> deque[bool]:
    return deque(maxlen=WINDOW)


def _newest_seconds() -> deque[float]:
    return deque(maxlen=WINDOW)


@dataclass(frozen=True, slots=True)
class Opening:
    """A circuit that a replica has opened, and its next probe, by this process's `time.monotonic`. A failed
    probe does not change `since_s`.
    """

    since_s: float
    until_s: float


@dataclass(slots=True, eq=False, weakref_slot=True)
class WorkerHealth:
    """Outcomes of one worker's newest calls, and its circuit.

    Calls that say nothing about the worker are not counted, for example if the client disconnected or the
    worker refused only that prompt. Only one event loop changes this object. Any thread may read it.
    """

    failures_in_a_row: int = 0
    """Number of consecutive failures up to now."""
    skip_until_s: float = 0.0
    """Time until which the worker should be skipped if another one can answer (`time.monotonic`)."""
    spoke_at_s: float = 0.0
    """Time of the newest first token (`time.monotonic`)."""
    succeeded_at_s: float = -inf
    """Time of the newest complete answer (`time.monotonic`)."""
    opening: Opening | None = None
    """The circuit that this replica's calls have opened, if any."""
    elsewhere: Sequence[Opening] = ()
    """Circuits of this worker that other replicas have open."""
    witnesses: Witnesses = field(default_factory=Witnesses)
    """Record of the callers whose calls failed, were refused or were rejected as busy."""
    first_fault: Fault | None = None
    """The first failure since the newest complete answer. Later ones may be its consequences."""
    newest_fault: Fault | None = None
    """The newest failure since the newest complete answer."""
    refuses: bool = False
    """True if the worker refuses every call, for example because of its key, and has not answered since."""
    _open_periods: int = 0
    """Consecutive open periods of the circuit, which determine the length of the next."""
    _probes_until_s: float = 0.0
    """Deadline of the probe that is running (`time.monotonic`), or 0."""
    _outcomes: deque[bool] = field(default_factory=_newest_outcomes)
    _first_token_s: deque[float] = field(default_factory=_newest_seconds)
    _pause_s: deque[float] = field(default_factory=_newest_seconds)

    def speak(self, first_token_s: float) -> None:
        """Record the seconds from sending a call to its first token."""
        self._first_token_s.append(first_token_s)
        self.spoke_at_s = time.monotonic()

    def pause(self, longest_s: float) -> None:
        """Record the longest pause between two tokens of a complete answer, in seconds."""
        self._pause_s.append(longest_s)

    def succeed(self) -> None:
        """Count a complete answer and close the circuit. The `Retry-After` of a closed circuit stays in
        force.
        """
        if self.circuit != "closed":
            self.skip_until_s = 0.0
        self.failures_in_a_row, self.opening = 0, None
        self.first_fault, self.newest_fault, self.refuses = None, None, False
        self._open_periods, self._probes_until_s = 0, 0.0
        self.witnesses.forget(FAILED)
        self.succeeded_at_s = time.monotonic()
        self._outcomes.append(True)

    def fail(
        self, skip_s: float = 0.0, *, for_all: bool = True, fault: Fault | None = None, refuses: bool = False
    ) -> None:
        """Count a failed call, and open the circuit after `FAILURES_BEFORE_OPEN` consecutive ones, if they
        are `for_all` keys (see `Witnesses`).

        Calls that ran when it opened do not extend it, because many that fail together would count as many
        failed probes.
        """
        self.first_fault, self.newest_fault = self.first_fault or fault, fault or self.newest_fault
        self.refuses |= refuses
        now_s = time.monotonic()
        is_news = self.circuit != "open" or now_s < self._probes_until_s
        self._probes_until_s = 0.0
        self.failures_in_a_row += 1
        self._outcomes.append(False)
        skip_s = min(skip_s, MAX_RETRY_AFTER_S)
        opens = self.failures_in_a_row >= FAILURES_BEFORE_OPEN and for_all
        if is_news and (opens or self.is_open_elsewhere):
            skip_s = max(skip_s, min(MAX_OPEN_S, FIRST_OPEN_S * 2.0 ** min(self._open_periods, 8)))
            self._open_periods += 1
        self.skip_until_s = max(self.skip_until_s, now_s + skip_s)
        if opens:
            since_s = self.opening.since_s if self.opening else now_s
            self.opening = Opening(since_s, self.skip_until_s)

    def skip(self, skip_s: float) -> None:
        """Skip the worker for `skip_s` seconds, without counting a failure."""
        self.skip_until_s = max(self.skip_until_s, time.monotonic() + min(skip_s, MAX_RETRY_AFTER_S))

    @property
    def circuit(self) -> Circuit:
        """State of the circuit. Open circuits of other replicas count too, unless calls succeed here."""
        if self.opening is None and not self.is_open_elsewhere:
            return "closed"
        return "open" if self.skip_s else "half_open"

    @property
    def is_failing(self) -> bool:
        """True if the newest calls failed, here or on other replicas, and the worker has not answered since."""
        return self.refuses or self.circuit != "closed" or self.failures_in_a_row >= FAILURES_BEFORE_OPEN

    @property
    def is_out(self) -> bool:
        """True if a call with any key would probably fail, for `OUT_S` seconds after the newest failure or
        while skipped. Without a limit, a router without traffic would never become ready.
        """
        is_for_all = self.refuses or self.circuit != "closed"
        if not is_for_all or (self.newest_fault and self.newest_fault.error == "WorkerBusy"):
            return False
        is_recent = self.newest_fault is not None and time.time() - self.newest_fault.at_s < OUT_S
        return self.skip_s > 0 or is_recent

    @property
    def is_open_elsewhere(self) -> bool:
        """True if another replica's open circuit applies here, whether or not this one's own does."""
        return bool(self._relevant_openings())

    def _relevant_openings(self) -> Sequence[Opening]:
        """Return the circuits of `elsewhere` that apply here.

        A complete answer here after a circuit opened shows that only the other replica's connection is broken.         one in the `RECENT_S` seconds before, unless a call has failed since.
        """
        if not self.elsewhere:
            return ()
        if not self.failures_in_a_row and time.monotonic() - self.succeeded_at_s < RECENT_S:
            return ()
        return [each for each in self.elsewhere if each.since_s > self.succeeded_at_s]

    def begin_call(self) -> float:
        """Record a call that is about to be sent. Return its deadline (`time.monotonic`) as the only probe of
        a half-open circuit, or 0.
        """
        if self.circuit != "half_open":
            return 0.0
        self._probes_until_s = time.monotonic() + PROBE_S
        return self._probes_until_s

    def end_call(self, probes_until_s: float) -> None:
        """Record the end of a call. `probes_until_s` is the result of `begin_call`. If a probe had no
        outcome, the next call may probe.
        """
        if self._probes_until_s == probes_until_s:  # otherwise it had an outcome, or another probe is running
            self._probes_until_s = 0.0

    @property
    def skip_s(self) -> float:
        """Seconds for which the worker should still be skipped, or 0."""
        until_s = max(
            [self.skip_until_s, self._probes_until_s, *(each.until_s for each in self._relevant_openings())]
        )
        return max(0.0, until_s - time.monotonic())

    @property
    def successes(self) -> int:
        """Number of complete answers among the newest `WINDOW` calls."""
        return list(self._outcomes).count(True)

    @property
    def failures(self) -> int:
        """Number of failures among the newest `WINDOW` calls."""
        return list(self._outcomes).count(False)

    @property
    def failure_share(self) -> float:
        """Share of the newest calls that failed, or 0 without calls."""
        return self.failures / max(1, len(self._outcomes))

    @property
    def first_tokens(self) -> int:
        """Number of calls whose time to the first token is known."""
        return len(self._first_token_s)

    def first_token_s(self, quantile: float) -> float | None:
        """Return a measured quantile (nearest rank) of the seconds to the first token, or None."""
        return _quantile(self._first_token_s, quantile)

    @property
    def pauses(self) -> int:
        """Number of complete answers whose longest pause is known."""
        return len(self._pause_s)

    def pause_s(self, quantile: float) -> float | None:
        """Return a measured quantile (nearest rank) of recent answers' longest pauses in seconds, or None."""
        return _quantile(self._pause_s, quantile)


def _quantile(seconds: deque[float], quantile: float) -> float | None:
    ordered = sorted(seconds)
    return ordered[max(0, ceil(quantile * len(ordered)) - 1)] if ordered else None


class Health:
    """Health records of the workers in this process. They survive a reload of the settings.

    Each pool references the records of its workers, and a record that no pool references is dropped,
    so a pool that is built and then rejected changes nothing. Late calls of a replaced worker do not
    count for the worker that took over its name.
    """

    def __init__(self) -> None:
        self._workers = WeakValueDictionary[Identity, WorkerHealth]()

    def of(self, worker: Identity) -> WorkerHealth:
        """Return the record of `worker`. Create it if no pool references one."""
        return self._workers.setdefault(worker, WorkerHealth())

    def workers(self) -> dict[Identity, WorkerHealth]:
        """Return all records that pools reference."""
        return dict(self._workers)
