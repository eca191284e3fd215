"""How each call ended, for the worker's health."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from math import inf

from conductor.errors import (
    ContextOverflow,
    LineTooLong,
    WorkerBusy,
    WorkerError,
    WorkerRefused,
    WorkerUnavailable,
)
from conductor.model.call import Call
from conductor.model.failure import Failure
from conductor.model.field_values import copy_with
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from serving.health import FAILED, MOST_REST_S, Fault, WorkerHealth
from serving.layers.first_token_limit import telling_silence_s
from serving.layers.layer import Layer
from serving.redaction.failures import outline
from serving.witnesses import party_of, witness_of

logger = logging.getLogger("podium")

BUSY_REST_S = 1.0
"""Where it does not say for how long it is busy; at most, where it is by the rate that we keep."""
REFUSED_REST_S = MOST_REST_S
"""After a refusal of every call, such as of a key that was revoked."""


class Watched(Layer):
    """`worker`, whose successes, failures and times to the first token are counted in `health`.

    A call whose caller has gone, or was out of time, before a word came is a failure where the silence was longer
    than the worker's usual and nobody else was answered meanwhile.
    """

    def __init__(self, worker: Worker, health: WorkerHealth) -> None:
        super().__init__(worker)
        self._health = health

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`."""
        began_s, reply, failed = time.monotonic(), None, False
        silence = _Silence(call)
        self._health.witnesses.traffic.note(party_of(call))
        try:
            async with self._worker.open(silence.call) as reply:
                self._health.speak(time.monotonic() - began_s)
                yield reply
        except WorkerError as exc:
            if isinstance(exc, WorkerBusy) and exc.by_own_rate:
                # no longer: what is counted of a prompt is an estimate, and given back where the call fails
                self._health.rest(min(_rest_s(exc), BUSY_REST_S))
            is_late = _is_only_late(exc)
            failed = _blames_worker(exc) and not (is_late and not self._is_telling(began_s, began_s))
            if failed:
                self._fail(call, exc)
            raise
        except asyncio.CancelledError:
            if reply is None and self._is_telling(began_s, silence.since_s):
                self._fail(call)
            raise
        finally:
            if not failed and reply is not None and reply.finish is not None:
                self._health.succeed()

    def _fail(self, call: Call, error: WorkerError | None = None) -> None:
        """Count a failure, or a silence without an error. What it means for all keys is decided by all who met with it."""
        refused = isinstance(error, WorkerRefused)
        in_doubt = isinstance(error, WorkerRefused) and error.in_doubt
        what = type(error).__name__ if isinstance(error, WorkerBusy | WorkerRefused) else FAILED
        for_all = self._health.witnesses.tell(what, witness_of(call), is_clear=not in_doubt)
        for_all |= refused and not in_doubt
        was_failing = self._health.is_failing
        self._health.fail(
            _rest_s(error) if error and for_all else 0.0,
            for_all=for_all,
            fault=_fault_of(error, self.name, call),
            refuses=refused and for_all,
        )
        if self._health.is_failing and not was_failing and (first := self._health.first_fault):
            logger.warning("%s fails; first with %s %s", self.name, first.story, first.detail)

    def _is_telling(self, began_s: float, since_s: float) -> bool:
        """Whether silence since then says that the worker is not well, at a call that was sent at `began_s`."""
        is_long = time.monotonic() - since_s > telling_silence_s(self._health)
        return is_long and self._health.spoke_at_s <= began_s


class _Silence:
    """Since when a call has been at a worker that says nothing."""

    def __init__(self, call: Call) -> None:
        self._on_queued, self._on_wait = call.on_queued, call.on_wait
        self.call = copy_with(call, on_queued=self._excuse, on_wait=self._wait)
        """As it is to be sent."""
        self.since_s = inf if call.priority == "batch" else time.monotonic()
        """By `time.monotonic`; `inf`: it is not there, lets all others go first, or its replica is being started."""

    def _excuse(self, why: str) -> None:
        self.since_s = inf
        if self._on_queued:
            self._on_queued(why)

    @contextmanager
    def _wait(self) -> Generator[None]:
        """It waits for a place at one of several deployments."""
        since_s, self.since_s = self.since_s, inf
        with self._on_wait() if self._on_wait else nullcontext():
            yield
        self.since_s = inf if since_s == inf else time.monotonic()


def _fault_of(error: WorkerError | None, worker: str, call: Call) -> Fault:
    """Return what is told of a failed call; an error's detail may quote the prompt."""
    if error is None:
        return Fault("WorkerUnavailable", f"{worker} said nothing for too long.")
    failure = Failure.of(error)
    return Fault(failure.code, failure.message, failure.detail if call.permit.stores else outline(failure))


def _rest_s(error: WorkerError) -> float:
    """How long the worker is better left alone, by what it says."""
    if isinstance(error, WorkerBusy):
        return error.retry_after_s or BUSY_REST_S
    return REFUSED_REST_S if isinstance(error, WorkerRefused) else 0.0


def _is_only_late(error: WorkerError) -> bool:
    """Whether it says nothing of the worker where others got their first tokens meanwhile. Else one key's slow calls
    would close it to everybody.
    """
    return isinstance(error, WorkerUnavailable) and error.only_late


def _blames_worker(error: WorkerError) -> bool:
    """Whether other calls would fail too: not where the worker refused this prompt, cannot hold it, or did not go on
    with what another call began.
    """
    if isinstance(error, WorkerRefused):
        return error.every_call
    if isinstance(error, WorkerUnavailable):
        return not error.only_this_call
    if isinstance(error, WorkerBusy):
        return not error.by_own_rate
    return not isinstance(error, ContextOverflow | LineTooLong)
