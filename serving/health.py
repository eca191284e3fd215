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

from serving.traffic import Witnesses

FAILURES_BEFORE_REST = 3
FIRST_REST_S = 5.0
MOST_REST_S = 8.0
"""Maximum seconds between two probes of an open circuit, so that a worker that recovers is used again within
10 s.
"""
MOST_ASKED_REST_S = 300.0
"""Maximum seconds for which a worker is skipped because of its `Retry-After`."""
PROBE_S = 8.0
"""Seconds after which another call may probe the worker if the first probe gets no answer. Otherwise a probe
that hangs would keep a recovered worker out of use.
"""
RECENT_S = 10.0
"""Seconds after a complete answer on this replica during which open circuits of other replicas are ignored,
unless a call has failed since.
"""
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
    """Identity of a worker across changes of settings. A worker with a different model or address is a new
    one, even if it has the same name.
    """

    name: str
    kind: str
    model: str
    address: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Failure of a call to a worker, and its reason.

    Args:
        error: name of the error's class, such as `WorkerRefused`.
        message: message for callers.
        detail: detail for operators, or "" if no text of the run may be stored.
        at_s: time of the failure, in seconds since 1970.
    """

    error: str
    message: str
    detail: str = ""
    at_s: float = field(default_factory=time.time)

    @property
    def story(self) -> str:
        """Name and message of the error, as one text for callers."""
        return f"{self.error}: {self.message}"


def _newest_outcomes() -> deque[bool]:
    return deque(maxlen=WINDOW)


def _newest_seconds() -> deque[float]:
    return deque(maxlen=WINDOW)


@dataclass(frozen=True, slots=True)
class Opening:
    """A circuit that a replica has opened.

    Args:
        since_s: when it opened (`time.monotonic` of this process). A failed probe does not change it.
        until_s: when the next probe is due (`time.monotonic` of this process).
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
    rests_until_s: float = 0.0
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
    _rests: int = 0
    """Number of consecutive rests (times for which the worker is skipped) after failures. It determines the
    length of the next rest.
    """
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
        """Count a complete answer and close the circuit.

        If the circuit was closed already, the worker is still skipped for as long as its `Retry-After` said.
        """
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
        """Count a failed call, and open the circuit after `FAILURES_BEFORE_REST` consecutive failures.

        A call that was already running when the circuit opened does not extend the time for which the worker
        is skipped. Otherwise many calls that fail together would count as many failed probes.

        Args:
            rest_s: seconds for which the worker asked not to be called.
            for_all: whether calls of all keys probably fail (see `Witnesses`). If not, the circuit does not
                open.
            fault: reason for the failure, or None if it is not known.
            refuses: whether the worker refuses every call.
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
        """Skip the worker for `rest_s` seconds, without counting a failure."""
        self.rests_until_s = max(self.rests_until_s, time.monotonic() + min(rest_s, MOST_ASKED_REST_S))

    @property
    def circuit(self) -> Circuit:
        """State of the circuit. Open circuits of other replicas count too, unless calls succeed here."""
        if self.opening is None and not self.is_open_elsewhere:
            return "closed"
        return "open" if self.rest_s else "half_open"

    @property
    def is_failing(self) -> bool:
        """True if the newest calls failed, here or on other replicas, and the worker has not answered since."""
        return self.refuses or self.circuit != "closed" or self.failures_in_a_row >= FAILURES_BEFORE_REST

    @property
    def is_out(self) -> bool:
        """True if a call would probably fail now, whichever key makes it.

        It becomes False `OUT_S` seconds after the newest failure, or later if the worker is still being
        skipped then. Without this limit, a router that gets no traffic while it is not ready would never
        become ready.
        """
        is_for_all = self.refuses or self.circuit != "closed"
        if not is_for_all or (self.newest_fault and self.newest_fault.error == "WorkerBusy"):
            return False
        is_recent = self.newest_fault is not None and time.time() - self.newest_fault.at_s < OUT_S
        return self.rest_s > 0 or is_recent

    @property
    def is_open_elsewhere(self) -> bool:
        """True if the open circuit of another replica applies here. This replica's own circuit may be open as
        well.
        """
        return bool(self._openings_to_heed())

    def _openings_to_heed(self) -> Sequence[Opening]:
        """Return the circuits of `elsewhere` that apply here.

        A circuit of another replica is ignored if a call of this replica got a complete answer after the
        circuit opened: then only the connection of the other replica is broken. An answer shortly before is
        enough too, until a call fails here.
        """
        if not self.elsewhere:
            return ()
        if not self.failures_in_a_row and time.monotonic() - self.succeeded_at_s < RECENT_S:
            return ()
        return [each for each in self.elsewhere if each.since_s > self.succeeded_at_s]

    def begin_call(self) -> float:
        """Record that a call is about to be sent. If the circuit is half open, this call becomes the only
        probe.

        Returns:
            Probe deadline (`time.monotonic`), or 0 if this call is not the probe.
        """
        if self.circuit != "half_open":
            return 0.0
        self._probes_until_s = time.monotonic() + PROBE_S
        return self._probes_until_s

    def end_call(self, probes_until_s: float) -> None:
        """Record that a call has ended. If it was the probe and had no outcome, the next call may probe
        immediately.

        A probe has no outcome if its client disconnected or its prompt was refused.

        Args:
            probes_until_s: value that `begin_call` returned for the call.
        """
        if self._probes_until_s == probes_until_s:  # otherwise it had an outcome, or another probe is running
            self._probes_until_s = 0.0

    @property
    def rest_s(self) -> float:
        """Seconds for which the worker should still be skipped, or 0."""
        until_s = max(
            [self.rests_until_s, self._probes_until_s, *(each.until_s for each in self._openings_to_heed())]
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
        """Return a quantile of the times to the first token, in seconds, or None if no time was measured.

        The quantile is a measured value (nearest rank).
        """
        return _quantile(self._first_token_s, quantile)

    @property
    def pauses(self) -> int:
        """Number of complete answers whose longest pause is known."""
        return len(self._pause_s)

    def pause_s(self, quantile: float) -> float | None:
        """Return a quantile of the longest pauses between two pieces of recent answers, in seconds, or None
        if no answer was measured.

        The quantile is a measured value (nearest rank).
        """
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
