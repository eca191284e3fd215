"""Calculate what an arrival rate requires: work per station, replicas, machines, dollars and the first
bottleneck.

Utilisation is rate times work divided by capacity (the utilisation law). This calculation ignores queues. The
simulation runs with the calculated sizes and shows the error.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.capacity.cluster import Sizes
from loadtest.capacity.inputs import EngineSpec, Inputs
from loadtest.capacity.plans import SimulatedPlan
from loadtest.capacity.stations import full_batch_s


@dataclass(frozen=True, slots=True)
class MeanWork:
    """Mean work that one request to Podium causes for one engine or API."""

    calls: float
    input_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Need:
    """What one station needs at one arrival rate.

    Args:
        needed: the needed replicas, or the needed tokens or requests per minute.
        available: the amount that is deployed, or that a test has demonstrated.
        of: the unit of both amounts, which is also the name of the limit.
        setting: whether a setting can raise the limit.
    """

    name: str
    needed: float
    available: float
    of: str
    setting: bool = False

    @property
    def ratio(self) -> float:
        """Needed amount divided by the available amount. Above 1, there is a shortage."""
        return self.needed / self.available


@dataclass(frozen=True, slots=True)
class Requirements:
    """What an arrival rate requires."""

    rate_rps: float
    sizes: Sizes
    machines: Mapping[str, int]
    gpus: int
    machines_usd_per_hour: float
    apis_usd_per_hour: float
    needs: tuple[Need, ...]
    """Needs of all stations, with the worst shortage first."""


def router_s(inputs: Inputs, plans: Sequence[SimulatedPlan]) -> float:
    """Return the mean CPU seconds that a request uses in the router."""
    look_tokens = inputs.plans.second_look.written_tokens

    def one(plan: SimulatedPlan) -> float:
        answer_tokens = plan.steps[-1].output_tokens
        return inputs.router.cpu_ms(
            steps=len(plan.reachable),
            plan_tokens=sum(step.written_tokens for step in plan.steps) + look_tokens * plan.second_look,
            inner_tokens=sum(plan.steps[index].output_tokens for index in plan.reachable) - answer_tokens,
            answer_tokens=answer_tokens,
            streamed=not plan.second_look,
        )

    return sum(one(plan) for plan in plans) / len(plans) / 1000


def loads(inputs: Inputs, plans: Sequence[SimulatedPlan]) -> dict[str, MeanWork]:
    """Return the mean work of a request by engine and API, for plans and for steps that run."""
    totals = {name: [0.0, 0.0, 0.0] for name in (*inputs.engines, *inputs.apis)}
    mix = inputs.plans
    uncached_tokens = mix.conductor_prompt_tokens * (1 - mix.prefix_cached)
    for plan in plans:
        written_tokens = sum(step.written_tokens for step in plan.steps)
        calls = [(inputs.conductor, uncached_tokens + plan.question_tokens, written_tokens)]
        if plan.second_look:
            input_tokens = uncached_tokens + plan.review_tokens
            calls.append((inputs.conductor, input_tokens, mix.second_look.written_tokens))
        for index in plan.reachable:
            step, worker = plan.steps[index], inputs.workers[plan.steps[index].worker]
            calls.append((worker.engine or worker.api or "", step.input_tokens, step.output_tokens))
        for name, input_tokens, output_tokens in calls:
            for place, amount in enumerate((1.0, input_tokens, output_tokens)):
                totals[name][place] += amount
    return {name: MeanWork(*(amount / len(plans) for amount in amounts)) for name, amounts in totals.items()}


def engine_s(engine: EngineSpec, load: MeanWork) -> float:
    """Return the seconds that one replica at a full batch needs for the load of one request."""
    return full_batch_s(engine, load.input_tokens, load.output_tokens)


def size(inputs: Inputs, rate_rps: float, plans: Sequence[SimulatedPlan]) -> Requirements:
    """Calculate the replicas, machines and dollars for `plans` that arrive at `rate_rps`."""
    by_name, limits = loads(inputs, plans), inputs.sizing
    routers = math.ceil(rate_rps * router_s(inputs, plans) / limits.router_utilisation)
    engines = {
        name: max(1, math.ceil(rate_rps * engine_s(engine, by_name[name]) / limits.engine_utilisation))
        for name, engine in inputs.engines.items()
    }
    needs = [*_engine_needs(inputs, engines), *_api_needs(inputs, rate_rps, by_name)]
    quotas = {
        name: max([1.0, *(2 * need.ratio for need in needs if need.name == name)]) for name in inputs.apis
    }
    machines = _machines(inputs, routers, engines)
    gpus = sum(inputs.engines[name].gpus * count for name, count in engines.items())
    needs.append(Need("router", routers, inputs.router.replicas, "replicas (`num_replicas`)", True))
    count = sum(machines.values())
    for name, ceiling in inputs.ceilings.items():
        needs.append(Need(name, count, ceiling.most, "machines in one Ray cluster"))
    return Requirements(
        rate_rps,
        Sizes(max(1, routers), engines, quotas),
        machines,
        gpus,
        machines_usd_per_hour=sum(inputs.machines[name].usd_per_hour * n for name, n in machines.items()),
        apis_usd_per_hour=_apis_usd(inputs, by_name) * rate_rps * 3600,
        needs=tuple(sorted(needs, key=lambda need: -need.ratio)),
    )


def _machines(inputs: Inputs, routers: int, engines: Mapping[str, int]) -> dict[str, int]:
    """Return the number of machines by type. Engines that use the same machine type share its GPUs."""
    gpus: dict[str, int] = {}
    for name, count in engines.items():
        engine = inputs.engines[name]
        gpus[engine.machine] = gpus.get(engine.machine, 0) + engine.gpus * count
    machines = {name: math.ceil(count / max(1, inputs.machines[name].gpus)) for name, count in gpus.items()}
    machines[inputs.router.machine] = math.ceil(routers / inputs.router.replicas_per_machine)
    return machines


def _engine_needs(inputs: Inputs, engines: Mapping[str, int]) -> list[Need]:
    return [
        Need(name, count, inputs.engines[name].max_replicas, "replicas (`max_replicas`)", True)
        for name, count in engines.items()
    ]


def _api_needs(inputs: Inputs, rate_rps: float, by_name: Mapping[str, MeanWork]) -> list[Need]:
    needs: list[Need] = []
    for name, api in inputs.apis.items():
        load = by_name[name]
        tokens = load.output_tokens + (load.input_tokens if api.counted == "all" else 0)
        for amount, quota, unit in (
            (tokens, api.tokens_per_minute, "tokens per minute (quota)"),
            (load.calls, api.requests_per_minute, "requests per minute (quota)"),
        ):
            if quota:
                needs.append(Need(name, rate_rps * amount * 60, quota, unit))
    return needs


def _apis_usd(inputs: Inputs, by_name: Mapping[str, MeanWork]) -> float:
    """Return the dollars for API calls of one request."""
    return sum(
        (
            by_name[name].input_tokens * api.usd_per_mtok_in
            + by_name[name].output_tokens * api.usd_per_mtok_out
        )
        / 1e6
        for name, api in inputs.apis.items()
    )


def slice_of(whole: Requirements, rate_rps: float) -> Sizes:
    """Return the requirements for a slice of the traffic: every station shrinks by the same factor."""
    share = rate_rps / whole.rate_rps
    engines = {name: max(1, round(count * share)) for name, count in whole.sizes.engines.items()}
    quotas = {name: quota * share for name, quota in whole.sizes.quotas.items()}
    return Sizes(max(1, math.ceil(whole.sizes.routers * share)), engines, quotas)
