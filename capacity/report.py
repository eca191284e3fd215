"""What is asked of the simulation, one function a question. Knows no tables, files or pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

import numpy as np

from capacity import inputs
from capacity.arrivals import made
from capacity.cluster import Run, Served, Sizes, percentile, simulate
from capacity.plans import Plan, Step, samples
from capacity.schedulers import SCHEDULERS, Timed, timeline
from capacity.sizing import Sized, engine_s, loads, sized, slice_of

PLANS_FOR_MEANS = 20_000
"""So many that their mean work is known to within 1 %."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One rate: what it needs, and what its users feel.

    Args:
        simulated_rps: the traffic that was simulated; the whole of it, or a slice.
        requests: that came after the warm-up, and were looked at.
        first_token_s, end_s: their percentiles, by name.
        busy: see `cluster.Run`.
    """

    sized: Sized
    simulated_rps: float
    requests: int
    first_token_s: Mapping[str, float]
    end_s: Mapping[str, float]
    busy: Mapping[str, float]

    @property
    def usd_per_hour(self) -> float:
        """Machines and APIs."""
        return self.sized.machines_usd_per_hour + self.sized.apis_usd_per_hour

    def plain(self) -> dict[str, object]:
        """For a JSON file."""
        return asdict(self) | {"usd_per_hour": self.usd_per_hour}


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """The usual three."""
    return {name: percentile(values, share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}


def means(given: inputs.Inputs, seed: int = 0) -> list[Plan]:
    """Enough plans to size by."""
    return samples(given, PLANS_FOR_MEANS, seed)


def answered(given: inputs.Inputs, rate_rps: float, *, traffic: str = "poisson", seed: int = 0) -> Answer:
    """Size for `rate_rps`, then simulate that, or a slice of it."""
    answer = sized(given, rate_rps, means(given, seed))
    simulated_rps = min(rate_rps, given.sizing.slice_rps)
    run = _run(given, slice_of(answer, simulated_rps), simulated_rps, traffic, seed)
    until_s = given.sizing.warm_up_s + given.sizing.measured_s
    kept = [each for each in run.served if given.sizing.warm_up_s <= each.arrived_s < until_s]
    first_s = percentiles([each.first_token_s - each.arrived_s for each in kept])
    return Answer(
        answer,
        simulated_rps,
        len(kept),
        first_s,
        percentiles([each.end_s - each.arrived_s for each in kept]),
        run.busy,
    )


def _run(given: inputs.Inputs, sizes: Sizes, rate_rps: float, traffic: str, seed: int) -> Run:
    until_s = given.sizing.warm_up_s + given.sizing.measured_s
    times = made(traffic, rate_rps, until_s, np.random.default_rng(seed + 1))
    plans = samples(given, len(times), seed + 2)
    return simulate(given, sizes, times, plans, seed=seed, since_s=given.sizing.warm_up_s)


def sliced(given: inputs.Inputs, rate_rps: float, seed: int = 0) -> float:
    """How far the slice's p95 of the answer's end is from the whole's, at a rate at which both can be simulated."""
    part = answered(given, rate_rps, seed=seed)
    wider = given.model_copy(update={"sizing": given.sizing.model_copy(update={"slice_rps": rate_rps})})
    return part.end_s["p95"] / answered(wider, rate_rps, seed=seed).end_s["p95"] - 1


def overloaded(given: inputs.Inputs, rate_rps: float, seed: int = 0) -> dict[str, float]:
    """How far each engine's capacity on paper is from what it does when twice as much is asked of it: paper over simulated, less 1.

    Every other station is made large, so that each engine in turn is the only one that is full.
    """
    plans, errors = means(given, seed), dict[str, float]()
    roomy = sized(given, 10 * rate_rps, plans).sizes
    asked = loads(given, plans)
    for name, engine in given.engines.items():
        replicas = max(1, round(rate_rps * engine_s(engine, asked[name]) / 2))
        sizes = replace(roomy, engines={**roomy.engines, name: replicas})
        errors[name] = 1 / _run(given, sizes, rate_rps, "poisson", seed).busy[name] - 1
    return errors


def scheduled(given: inputs.Inputs, count: int = 1000, seed: int = 0) -> dict[str, list[float]]:
    """Seconds to the end of each of `count` plans under each scheduler, with nobody else there."""
    rng = np.random.default_rng(seed)
    ends_s: dict[str, list[float]] = {name: [] for name in SCHEDULERS}
    for plan in samples(given, count, seed):
        steps, plan_end_s = timed(given, plan, rng)
        for name in SCHEDULERS:
            ends_s[name].append(timeline(steps, plan_end_s, name).end_s)
    return ends_s


def timed(given: inputs.Inputs, plan: Plan, rng: np.random.Generator) -> tuple[list[Timed], float]:
    """What each step takes where every engine is alone with it, and when the plan's text ends."""
    conductor = given.engines[given.conductor]
    prompt_tokens = (
        given.plans.conductor_prompt_tokens * (1 - given.plans.prefix_cached) + plan.question_tokens
    )
    ends = np.cumsum([step.written_tokens for step in plan.steps]) * conductor.step_ms[1] / 1000
    written_s = (prompt_tokens / conductor.prefill_tokens_per_s + ends).tolist()
    steps = zip(plan.steps, written_s, strict=True)
    return [Timed(at_s, step.reads, *_alone(given, step, rng)) for step, at_s in steps], written_s[-1]


def _alone(given: inputs.Inputs, step: Step, rng: np.random.Generator) -> tuple[float, float]:
    """Until the first token, and until the last."""
    worker = given.workers[step.worker]
    if worker.engine:
        engine = given.engines[worker.engine]
        read_s, token_s = step.input_tokens / engine.prefill_tokens_per_s, engine.step_ms[1] / 1000
        return read_s + token_s, read_s + step.output_tokens * token_s
    api = given.apis[worker.api or ""]
    first_s = float(rng.lognormal(np.log(api.first_token_s), api.first_token_sigma))
    return first_s, first_s + (step.output_tokens - 1) * api.token_ms / 1000


@dataclass(frozen=True, slots=True)
class Scaled:
    """Traffic that changes, under autoscaling: when requests came, what became of them, replicas over time by engine."""

    times_s: list[float]
    served: list[Served]
    seen: Mapping[str, list[tuple[float, int, int]]]

    def replica_hours(self, engine: str) -> float:
        """Paid for."""
        seen = self.seen[engine]
        return sum(now[2] * (then[0] - now[0]) for now, then in pairwise(seen)) / 3600


def scaled(
    given: inputs.Inputs, rate_rps: float, traffic: str, *, duration_s: float = 3600, seed: int = 0
) -> Scaled:
    """Begin with what the first tenth of the time needs, and let Serve do the rest; `rate_rps` is the peak."""
    times = made(traffic, rate_rps, duration_s, np.random.default_rng(seed))
    plans = samples(given, len(times), seed + 1)
    first_rps = max(0.1, float((times < duration_s / 10).sum()) / (duration_s / 10))
    begin, peak = (
        sized(given, first_rps, means(given, seed)).sizes,
        sized(given, rate_rps, means(given, seed)).sizes,
    )
    run = simulate(given, replace(peak, engines=begin.engines), times, plans, seed=seed, scale=True)
    return Scaled(times.tolist(), run.served, run.seen)
