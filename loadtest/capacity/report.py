"""Experiments with the simulation, one function each. `cli.py` prints and writes their results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadtest import percentile
from loadtest.capacity import inputs
from loadtest.capacity.arrivals import traffic as draw_traffic
from loadtest.capacity.cluster import SimulatedRun, Sizes, simulate
from loadtest.capacity.plans import SimulatedPlan, samples
from loadtest.capacity.sizing import Requirements, engine_s, loads, size, slice_of

PLANS_FOR_MEANS = 20_000
"""Number of plans that is large enough to know their mean work within 1 %."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Requirements and waiting times at one arrival rate.

    Args:
        simulated_rps: the requests per second that were simulated: the whole rate, or a slice of it if the
            rate is high.
        busy: the utilisation of each station; see `cluster.SimulatedRun`.
    """

    requirements: Requirements
    simulated_rps: float
    requests: int
    first_token_s: Mapping[str, float]
    end_s: Mapping[str, float]
    busy: Mapping[str, float]

    @property
    def usd_per_hour(self) -> float:
        """Dollars per hour for machines and APIs together."""
        return self.requirements.machines_usd_per_hour + self.requirements.apis_usd_per_hour


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return p50, p95 and p99 by name."""
    return {f"p{percent}": percentile(values, percent) for percent in (50, 95, 99)}


def sizing_plans(params: inputs.Inputs, seed: int = 0) -> list[SimulatedPlan]:
    """Draw the plans for the sizing calculation."""
    return samples(params, PLANS_FOR_MEANS, seed)


def forecast(params: inputs.Inputs, rate_rps: float, *, traffic: str = "poisson", seed: int = 0) -> Forecast:
    """Calculate the requirements for `rate_rps`, then simulate that rate, or a slice of it if the rate
    is high.
    """
    requirements = size(params, rate_rps, sizing_plans(params, seed))
    simulated_rps = min(rate_rps, params.sizing.slice_rps)
    run = _run(params, slice_of(requirements, simulated_rps), simulated_rps, traffic, seed)
    until_s = params.sizing.warm_up_s + params.sizing.measured_s
    counted = [each for each in run.requests if params.sizing.warm_up_s <= each.arrived_s < until_s]
    first_token_s = percentiles([each.first_token_s - each.arrived_s for each in counted])
    end_s = percentiles([each.end_s - each.arrived_s for each in counted])
    return Forecast(requirements, simulated_rps, len(counted), first_token_s, end_s, run.busy)


def _run(params: inputs.Inputs, sizes: Sizes, rate_rps: float, traffic: str, seed: int) -> SimulatedRun:
    until_s = params.sizing.warm_up_s + params.sizing.measured_s
    times = draw_traffic(traffic, rate_rps, until_s, np.random.default_rng(seed + 1))
    plans = samples(params, len(times), seed + 2)
    return simulate(params, sizes, times, plans, seed=seed, since_s=params.sizing.warm_up_s)


def slice_error(params: inputs.Inputs, rate_rps: float, seed: int = 0) -> float:
    """Return the p95 of a slice over that of the whole, minus 1. The rate must allow to simulate the whole."""
    part = forecast(params, rate_rps, seed=seed)
    wider = params.model_copy(update={"sizing": params.sizing.model_copy(update={"slice_rps": rate_rps})})
    return part.end_s["p95"] / forecast(wider, rate_rps, seed=seed).end_s["p95"] - 1


def calculation_errors(params: inputs.Inputs, rate_rps: float, seed: int = 0) -> dict[str, float]:
    """Return by how much each engine's calculated capacity differs from the simulated one: their ratio minus
    1.

    In the simulation, the engine has half of the replicas that it needs. Every other station is made large,
    so that each engine in turn is the only bottleneck.
    """
    plans, errors = sizing_plans(params, seed), dict[str, float]()
    large = size(params, 10 * rate_rps, plans).sizes
    by_name = loads(params, plans)
    for name, engine in params.engines.items():
        replicas = max(1, round(rate_rps * engine_s(engine, by_name[name]) / 2))
        sizes = replace(large, engines={**large.engines, name: replicas})
        errors[name] = 1 / _run(params, sizes, rate_rps, "poisson", seed).busy[name] - 1
    return errors
