"""Builders of routes and dispatchers around fake workers."""

from math import inf

from conductor.model.terms import Callee
from conductor.model.usage import FREE, Price
from conductor.model.worker import Worker
from serving.dispatch.call_budgets import RetryBudget
from serving.dispatch.dispatcher import Dispatcher
from serving.dispatch.limiter import Limiter
from serving.dispatch.model_parameters import ModelProfile
from serving.dispatch.route import RetryRules, Route, SharedLimiter
from serving.dispatch.target import Target
from serving.health import WorkerHealth
from serving.telemetry.spans import SpanFacts


def target(
    worker: Worker,
    deployment: str = "",
    *,
    slots: int = 32,
    limiter: Limiter | None = None,
    health: WorkerHealth | None = None,
    span: SpanFacts | None = None,
    price: Price | None = FREE,
    learns_first_token: bool | None = None,
    learns_pauses: bool = False,
    weight: float = 1.0,
    account: str = "",
) -> Target:
    """Return a target for `worker`: a named deployment, or the only place if it has no name."""
    return Target(
        Callee(worker.name, deployment, price),
        worker,
        limiter or Limiter(worker.name, slots),
        health or WorkerHealth(),
        span or SpanFacts("test", worker.name),
        learns_first_token,
        learns_pauses,
        weight,
        account=account,
    )


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
    span: SpanFacts | None = None,
    profile: ModelProfile | None = None,
    retry_budget: RetryBudget | None = None,
    hedge_budget: RetryBudget | None = None,
    price: Price | None = FREE,
    learns_first_token: bool | None = None,
    learns_pauses: bool = False,
) -> Route:
    """Return a route with a single place."""
    place = target(
        worker,
        limiter=limiter or Limiter(worker.name, slots, longest_queue_s),
        health=health,
        span=span,
        price=price,
        learns_first_token=learns_first_token,
        learns_pauses=learns_pauses,
    )
    rules = RetryRules(attempts, first_wait_s, max_wait_s, fallback_wait_s)
    profile = profile or ModelProfile()
    return Route(
        worker.name,
        (place,),
        place.limiter,
        place.health,
        profile,
        rules,
        retry_budget,
        hedge_budget,
    )


def deployed(
    *places: Target,
    limiter: Limiter | None = None,
    health: WorkerHealth | None = None,
    hedge_budget: RetryBudget | None = None,
) -> Route:
    name = places[0].callee.worker
    limiter = limiter or SharedLimiter(name, places, 32)
    return Route(name, places, limiter, health or WorkerHealth(), ModelProfile(), hedge_budget=hedge_budget)


def dispatcher(*workers: Worker | Route) -> Dispatcher:
    """Return a dispatcher for the first of `workers`, with the others as fallbacks."""
    return Dispatcher([each if isinstance(each, Route) else route(each) for each in workers])
