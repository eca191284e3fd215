"""The layers around each worker, declared once."""

from collections.abc import Callable
from dataclasses import dataclass

from conductor.model.worker import Worker
from serving.clients import model_name
from serving.layers.fitting import Fitting
from serving.layers.limited import Limited
from serving.layers.retrying import Retrying
from serving.layers.skipping_refused import SkippingRefused
from serving.layers.traced import Traced
from serving.settings.known_models import accepts_of
from serving.settings.settings import Settings
from serving.settings.workers import API_SETTINGS, WorkerSettings
from serving.telemetry.spans import PROVIDERS

Layer = Callable[[Worker, WorkerSettings, Settings], Worker]
"""Wraps a worker as its settings say; the worker itself where they ask for nothing."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A worker with its layers."""

    top: Worker
    limiter: Limited
    """The layer that knows how many calls are open and how many wait."""


def _trace(worker: Worker, own: WorkerSettings, settings: Settings) -> Worker:
    content = settings.telemetry.content
    return Traced(worker, PROVIDERS[own.kind], model_name(own, settings), content=content)


def _limit(worker: Worker, own: WorkerSettings, _: Settings) -> Worker:
    return Limited(worker, own.max_concurrency)


def _skip_refused(worker: Worker, _: WorkerSettings, __: Settings) -> Worker:
    return SkippingRefused(worker)


def _retry(worker: Worker, own: WorkerSettings, _: Settings) -> Worker:
    return Retrying(worker, own.retry.attempts, own.retry.first_wait_s, own.retry.max_wait_s)


def _fit(worker: Worker, own: WorkerSettings, _: Settings) -> Worker:
    return Fitting(worker, own.model, accepts_of(own)) if isinstance(own, API_SETTINGS) else worker


LAYERS: tuple[Layer, ...] = (_trace, _limit, _skip_refused, _retry, _fit)
"""Innermost first. A span is one call as it is sent, a wait for a retry holds no slot, and a worker is sent
only what it accepts. Failing over is around whole stacks (`serving/pool.py`): a fallback is retried, and
sent what its model accepts, by its own rules."""


def stack(client: Worker, own: WorkerSettings, settings: Settings) -> Stack:
    """`client` with all its layers."""
    top, limiter = client, None
    for layer in LAYERS:
        top = layer(top, own, settings)
        limiter = top if isinstance(top, Limited) else limiter
    assert limiter is not None, "LAYERS has one"
    return Stack(top, limiter)
