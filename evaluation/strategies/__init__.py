"""Strategies by name. Each module of this package has one family of strategies."""

from collections.abc import Callable, Sequence
from importlib import import_module

from evaluation import EvaluationError
from evaluation.backends import EvaluationBackend
from evaluation.spec import Spec
from evaluation.strategies.base import OpenBackend, Setup, Strategy

STRATEGIES: dict[str, tuple[str, str]] = {
    "single": ("single", "single, single:WORKER: one worker alone; without WORKER, each worker of the pool"),
    "random": ("single", "random: a random worker for each question"),
    "cheapest": ("single", "cheapest: the worker that costs least"),
    "self_consistency": ("voting", "self_consistency:WORKER?n=5&temperature=0.7: the majority of n samples"),
    "vote": ("voting", "vote, vote:a+b+c: the majority of one answer of each worker"),
    "self_reflection": ("fixed_plans", "self_reflection:WORKER?rounds=5: a worker revises its own answer"),
    "moa": ("fixed_plans", "moa:AGGREGATOR?layers=1&proposers=a+b&temperature=0.7: Mixture-of-Agents"),
    "routellm": ("routers", "routellm?strong=A&weak=B&share=0.5: RouteLLM's factorisation (needs --train)"),
    "router": ("routers", "router?usd=best: a learned router over all workers (needs --train)"),
    "masrouter": ("masrouter", "masrouter?max_agents=6&epochs=5: MasRouter's cascade (needs --train)"),
    "conductor": (
        "conductor",
        "conductor?model=NAME, conductor?at=URL: the conductor of the settings or the server",
    ),
    "trained": ("conductor", "trained?settings=FILE, ?at=URL or ?model=NAME: another, trained conductor"),
    "best_of_n": (
        "best_of_n",
        "best_of_n:WORKER?match=conductor&by=calls: samples at the cost of another strategy",
    ),
    "best_of_n_oracle": ("bounds", "best_of_n_oracle: right if any sample of best_of_n is (no calls)"),
    "oracle": ("bounds", "oracle: right if any single worker is (no calls)"),
}
"""Module and syntax of each strategy. WORKER defaults to the best worker on --train, or to the pool's first
without --train.
"""
LEARNED = ("routellm", "router", "masrouter")
USUAL = tuple(name for name in STRATEGIES if name not in {*LEARNED, "vote", "trained"})
OF_A_CONDUCTOR = ("conductor", "best_of_n", "best_of_n_oracle")
ORDER = {"best_of_n": 1, "best_of_n_oracle": 2, "oracle": 2}
"""Positions of strategies that read the results of others, and so come after them. The default is 0."""


def expand(names: Sequence[str], backend: EvaluationBackend, *, learns: bool) -> list[str]:
    """Expand comma-separated `names`, with `usual` and `learned`. Strategies that lack conductor, prices or
    costs are left out.
    """
    has_prices = learns or any(backend.price(worker) is not None for worker in backend.workers)
    left_out = {*(() if backend.has_conductor else OF_A_CONDUCTOR), *(() if has_prices else ("cheapest",))}
    groups = {"usual": tuple(name for name in USUAL if name not in left_out), "learned": LEARNED}
    separate = [name for each in names for name in each.split(",") if name]
    return [name for each in separate for name in groups.get(each, (each,))]


def make(names: Sequence[str], backend: EvaluationBackend, open_backend: OpenBackend) -> list[Strategy]:
    """Create the strategies in `names`. One that reads the results of others comes after them."""
    specs = sorted(map(Spec.parse, names), key=lambda spec: ORDER.get(spec.name, 0))
    strategies: list[Strategy] = []
    for spec in specs:
        if spec.name not in STRATEGIES:
            raise EvaluationError(f"Unknown strategy {spec.name!r}. Choose from: {', '.join(STRATEGIES)}.")
        factory: Callable[[Spec, Setup], Sequence[Strategy]] = import_module(
            f"evaluation.strategies.{STRATEGIES[spec.name][0]}"
        ).make
        strategies += factory(spec, Setup(backend, [each.label for each in strategies], open_backend))
    labels = [each.label for each in strategies]
    for label in labels:
        if labels.count(label) > 1:
            raise EvaluationError(f"The strategy {label!r} is listed twice. List it once.")
    return strategies
