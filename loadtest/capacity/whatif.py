"""Effect of changing one input on the calculated requirements."""

from collections.abc import Callable, Mapping

from loadtest.capacity.inputs import EngineSpec, Inputs
from loadtest.capacity.plans import samples
from loadtest.capacity.sizing import Requirements, size

PLANS = 20_000


def plans(**changes: object) -> Callable[[Inputs], Inputs]:
    """Return a function that changes fields of the mix of plans."""
    return lambda params: params.model_copy(update={"plans": params.plans.model_copy(update=changes)})


def engines(
    change: Callable[[EngineSpec], Mapping[str, object]], *, of: str | None = None
) -> Callable[[Inputs], Inputs]:
    """Return a function that changes every engine, or only the engine `of`."""

    def apply(params: Inputs) -> Inputs:
        engines = {
            name: engine.model_copy(update=change(engine)) if of in (None, name) else engine
            for name, engine in params.engines.items()
        }
        return params.model_copy(update={"engines": engines})

    return apply


def router(costs: Mapping[str, float]) -> Callable[[Inputs], Inputs]:
    """Return a function that changes the router's CPU costs."""
    return lambda params: params.model_copy(update={"router": params.router.model_copy(update=costs)})


def half_the_tokens(params: Inputs) -> Inputs:
    """Halve the output tokens of steps."""
    tokens = params.plans.step_output_tokens
    return plans(step_output_tokens=tokens.model_copy(update={"mean": tokens.mean / 2}))(params)


def always_review(params: Inputs) -> Inputs:
    """Give every request a second round."""
    return plans(second_look=params.plans.second_look.model_copy(update={"share": 1.0}))(params)


CHANGES: Mapping[str, Callable[[Inputs], Inputs]] = {
    "no change": lambda params: params,
    "half the output tokens per step": half_the_tokens,
    "plans of one or two steps": plans(steps={1: 0.5, 2: 0.5}),
    "a second round for every request": always_review,
    "decoding of the 32B model twice as fast, prefill unchanged": engines(
        lambda engine: {"step_ms": {count: ms / 2 for count, ms in engine.step_ms.items()}}, of="32b"
    ),
    "half as many sequences per batch": engines(lambda engine: {"memory_seqs": engine.batch // 2}),
    "no prefix cache for the conductor": plans(prefix_cached=0.0),
}


def requirements_by_change(params: Inputs, rate_rps: float, plans: int = PLANS) -> dict[str, Requirements]:
    """Return the requirements after each change by its name, from `plans` randomly drawn plans."""
    changed = {name: change(params) for name, change in CHANGES.items()}
    changed |= {name: router(costs)(params) for name, costs in params.other_routers.items()}
    return {name: size(each, rate_rps, samples(each, plans, 0)) for name, each in changed.items()}
