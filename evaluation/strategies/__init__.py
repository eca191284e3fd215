"""Strategies side by side: a table of names, each family a file of its own."""

from collections.abc import Sequence
from importlib import import_module

from evaluation.backends.in_process import Asker
from evaluation.errors import EvaluationError
from evaluation.spec import Named
from evaluation.strategies.base import Maker, OpenAsker, Setup, Strategy

STRATEGIES: dict[str, tuple[str, str]] = {
    "single": ("single", "single, single:WORKER: each worker by itself; alone it means every one of them"),
    "random": ("single", "random: a worker drawn by lot for each question"),
    "cheapest": ("single", "cheapest: the worker that costs least"),
    "self_consistency": ("voting", "self_consistency:WORKER?n=5&temperature=0.7: the majority of n samples"),
    "vote": ("voting", "vote, vote:a+b+c: the majority of one answer of each worker"),
    "self_reflection": ("fixed", "self_reflection:WORKER?rounds=5: a worker revises its own answer"),
    "moa": ("fixed", "moa:AGGREGATOR?layers=1&proposers=a+b&temperature=0.7: Mixture-of-Agents"),
    "routellm": ("routers", "routellm?strong=A&weak=B&share=0.5: RouteLLM's matrix factorisation (needs --train)"),
    "router": ("routers", "router?usd=best: a learned router over all workers (needs --train)"),
    "masrouter": ("masrouter", "masrouter?max_agents=6&epochs=5: MasRouter's cascade, in short (needs --train)"),
    "conductor": ("conducted", "conductor?model=NAME or conductor?at=URL: the conductor of the settings or the server"),
    "trained": ("conducted", "trained?settings=FILE, trained?at=URL or trained?model=NAME: another, trained conductor"),
    "best_of_n": ("best_of_n", "best_of_n:WORKER?match=conductor&by=calls: as many samples as the conductor used"),
    "best_of_n_oracle": ("derived", "best_of_n_oracle: right where any of best_of_n's samples is (pick@n; no calls)"),
    "oracle": ("derived", "oracle: right where any single worker is (no calls)"),
}  # fmt: skip
"""Name to its file and how it is written. An unnamed WORKER is the best on --train, or else the first of the pool."""
USUAL = ("single", "random", "cheapest", "self_consistency", "self_reflection", "moa", "conductor", "best_of_n",
         "best_of_n_oracle", "oracle")  # fmt: skip
OF_A_CONDUCTOR = ("conductor", "best_of_n", "best_of_n_oracle")
LEARNED = ("routellm", "router", "masrouter")


def expanded(names: Sequence[str], asker: Asker, *, learns: bool) -> list[str]:
    """`names` with `usual` and `learned` written out.

    Args:
        names: as on the command line; several may stand in one, with commas between.
        asker: of the usual ones those are left out that need a conductor or prices which it has not.
        learns: there are training questions, which tell what workers cost.
    """
    priced = learns or any(asker.price(worker) is not None for worker in asker.workers)
    left_out = {*(() if asker.conducts else OF_A_CONDUCTOR), *(() if priced else ("cheapest",))}
    groups = {"usual": tuple(name for name in USUAL if name not in left_out), "learned": LEARNED}
    given = [name for each in names for name in each.split(",") if name]
    return [name for each in given for name in groups.get(each, (each,))]


def make(names: Sequence[str], asker: Asker, open_asker: OpenAsker) -> list[Strategy]:
    """The strategies called `names`, in an order in which each stands after those it reads.

    Raises:
        EvaluationError: one is unknown, is there twice, or lacks something.
    """
    made: list[Strategy] = []
    derived = [name for name in names if Named.read(name).name in ("best_of_n", "best_of_n_oracle", "oracle")]
    derived.sort(key=lambda name: Named.read(name).name != "best_of_n")
    for name in [*(name for name in names if name not in derived), *derived]:
        named = Named.read(name)
        if named.name not in STRATEGIES:
            raise EvaluationError(
                f"No strategy is called {named.name!r}; there are: {', '.join(STRATEGIES)}."
            )
        maker: Maker = import_module(f"evaluation.strategies.{STRATEGIES[named.name][0]}").make
        made += maker(named, Setup(asker, [each.label for each in made], open_asker))
    labels = [each.label for each in made]
    for label in labels:
        if labels.count(label) > 1:
            raise EvaluationError(f"The strategy {label!r} is named twice.")
    return made
