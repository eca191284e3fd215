"""Routes and dispatchers around fakes."""

from math import inf

from conductor.model.callee import Callee
from conductor.model.usage import FREE, Price
from conductor.model.worker import Worker
from serving.dispatch.call_span import SpanFacts
from serving.dispatch.dispatcher import Dispatcher
from serving.dispatch.limiter import Limiter
from serving.dispatch.profile import ModelProfile
from serving.dispatch.retry_budget import RetryBudget
from serving.dispatch.route import RetryRules, Route
from serving.dispatch.target import Target
from serving.health import WorkerHealth


def route(
    worker: Worker,
    attempts: int = 1,
    first_wait_s: float = 0.001,
    max_wait_s: float = 0.001,
    *,
    fallback_wait_s: float = 0.0,
    slots: int = 32,
    longest_queue_s: float = inf,
    limiter: Limiter | None = None,
    health: WorkerHealth | None = None,
    profile: ModelProfile | None = None,
    retry_budget: RetryBudget | None = None,
    hedge_budget: RetryBudget | None = None,
    price: Price | None = FREE,
    learns_first_token: bool | None = None,
    learns_pauses: bool = False,
) -> Route:
    """Return a worker with one place."""
    limiter = limiter or Limiter(worker.name, slots, longest_queue_s)
    health = health or WorkerHealth()
    target = Target(
        Callee(worker.name, "", price),
        worker,
        limiter,
        health,
        SpanFacts("test", worker.name),
        learns_first_token,
        learns_pauses,
    )
    rules = RetryRules(attempts, first_wait_s, max_wait_s, fallback_wait_s)
    profile = profile or ModelProfile()
    return Route(worker.name, (target,), limiter, health, profile, rules, retry_budget, hedge_budget)


def dispatcher(*workers: Worker | Route) -> Dispatcher:
    """Return the first of `workers`, with the others as its fallbacks."""
    return Dispatcher([each if isinstance(each, Route) else route(each) for each in workers])
