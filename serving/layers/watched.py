"""How each call ended, for the worker's health."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from conductor.errors import (
    ContextOverflow,
    LineTooLong,
    WorkerBusy,
    WorkerError,
    WorkerRefused,
    WorkerUnavailable,
)
from conductor.model.call import Call
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from serving.health import WorkerHealth
from serving.layers.layer import Layer

BUSY_REST_S = 1.0
"""Where it does not say for how long it is busy."""
REFUSED_REST_S = 60.0
"""After a refusal of every call, such as of a key that was revoked."""


class Watched(Layer):
    """`worker`, whose successes, failures and times to the first token are counted in `health`."""

    def __init__(self, worker: Worker, health: WorkerHealth) -> None:
        super().__init__(worker)
        self._health = health

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`."""
        began_s, reply, failed = time.monotonic(), None, False
        try:
            async with self._worker.open(call) as reply:
                self._health.speak(time.monotonic() - began_s)
                yield reply
        except WorkerError as exc:
            failed = _blames_worker(exc) and not (_is_only_late(exc) and self._health.spoke_at_s > began_s)
            if failed:
                self._health.fail(_rest_s(exc))
            raise
        finally:
            if not failed and reply is not None and reply.finish is not None:
                self._health.succeed()


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
    return not isinstance(error, ContextOverflow | LineTooLong)
