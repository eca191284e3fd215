"""What a rate of requests needs, on paper: work for each station, replicas, machines, dollars, and what runs out first.

A fluid answer: utilisation is rate times work over capacity (the utilisation law), and queues are left to the simulation, which
is run with these sizes and says how wrong they are.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from capacity.cluster import Sizes
from capacity.inputs import Engine, Inputs
from capacity.plans import Plan
from capacity.stations import full_batch_s


@dataclass(frozen=True, slots=True)
class Load:
    """Of one engine or API, for one request to Podium, in the mean."""

    calls: float
    input_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Need:
    """One station at one rate.

    Args:
        name: of the station.
        needed: replicas, or tokens or requests a minute.
        there: what is there today, or is known to be possible.
        of: the unit of both, and whose limit it is.
        setting: whether a line of the settings raises it; else somebody else must.
    """

    name: str
    needed: float
    there: float
    of: str
    setting: bool = False

    @property
    def ratio(self) -> float:
        """Above 1, it is short."""
        return self.needed / self.there


@dataclass(frozen=True, slots=True)
class Sized:
    """The answer for one rate."""

    rate_rps: float
    sizes: Sizes
    machines: Mapping[str, int]
    gpus: int
    machines_usd_per_hour: float
    apis_usd_per_hour: float
    needs: tuple[Need, ...]
    """All of them, the shortest first."""


def router_s(inputs: Inputs, plans: Sequence[Plan]) -> float:
    """A router's CPU seconds for a request, in the mean."""
    look_tokens = inputs.plans.second_look.written_tokens

    def one(plan: Plan) -> float:
        answer_tokens = plan.steps[-1].output_tokens
        return inputs.router.cpu_ms(
            steps=len(plan.needed),
            plan_tokens=sum(step.written_tokens for step in plan.steps) + look_tokens * plan.second_look,
            inner_tokens=sum(plan.steps[index].output_tokens for index in plan.needed) - answer_tokens,
            answer_tokens=answer_tokens, streamed=not plan.second_look,
        )  # fmt: skip

    return sum(one(plan) for plan in plans) / len(plans) / 1000


def loads(inputs: Inputs, plans: Sequence[Plan]) -> dict[str, Load]:
    """By engine and API: what the steps that are needed ask of it, and the conductor's own work."""
    totals = {name: [0.0, 0.0, 0.0] for name in (*inputs.engines, *inputs.apis)}
    mix = inputs.plans
    uncached_tokens = mix.conductor_prompt_tokens * (1 - mix.prefix_cached)
    for plan in plans:
        asked = [
            (
                inputs.conductor,
                uncached_tokens + plan.question_tokens,
                sum(s.written_tokens for s in plan.steps),
            )
        ]
        if plan.second_look:
            read = uncached_tokens + plan.looked_at_tokens
            asked.append((inputs.conductor, read, mix.second_look.written_tokens))
        for index in plan.needed:
            step, worker = plan.steps[index], inputs.workers[plan.steps[index].worker]
            asked.append((worker.engine or worker.api or "", step.input_tokens, step.output_tokens))
        for name, read, written in asked:
            for place, amount in enumerate((1.0, read, written)):
                totals[name][place] += amount
    return {name: Load(*(amount / len(plans) for amount in amounts)) for name, amounts in totals.items()}


def engine_s(engine: Engine, load: Load) -> float:
    """Seconds of one replica for a request's load, where its batch is full."""
    return full_batch_s(engine, load.input_tokens, load.output_tokens)


def sized(inputs: Inputs, rate_rps: float, plans: Sequence[Plan]) -> Sized:
    """The replicas, machines and dollars for `rate_rps` of such plans."""
    asked, wanted = loads(inputs, plans), inputs.sizing
    routers = math.ceil(rate_rps * router_s(inputs, plans) / wanted.router_utilisation)
    engines = {
        name: max(1, math.ceil(rate_rps * engine_s(engine, asked[name]) / wanted.engine_utilisation))
        for name, engine in inputs.engines.items()
    }
    needs = [*_engine_needs(inputs, engines), *_api_needs(inputs, rate_rps, asked)]
    quotas = {
        name: max([1.0, *(2 * need.ratio for need in needs if need.name == name)]) for name in inputs.apis
    }
    machines = _machines(inputs, routers, engines)
    gpus = sum(inputs.engines[name].gpus * count for name, count in engines.items())
    needs += [
        Need("router", routers, inputs.router.replicas, "replicas, its `num_replicas` today", True),
        *(Need(name, sum(machines.values()), ceiling.most, "machines in one Ray cluster")
          for name, ceiling in inputs.ceilings.items()),
    ]  # fmt: skip
    return Sized(
        rate_rps, Sizes(max(1, routers), engines, quotas), machines, gpus,
        sum(inputs.machines[name].usd_per_hour * count for name, count in machines.items()),
        _apis_usd(inputs, asked) * rate_rps * 3600,
        tuple(sorted(needs, key=lambda need: -need.ratio)),
    )  # fmt: skip


def _machines(inputs: Inputs, routers: int, engines: Mapping[str, int]) -> dict[str, int]:
    """Whole machines: GPUs of one sort are shared by the engines on it."""
    gpus: dict[str, int] = {}
    for name, count in engines.items():
        engine = inputs.engines[name]
        gpus[engine.machine] = gpus.get(engine.machine, 0) + engine.gpus * count
    found = {name: math.ceil(count / max(1, inputs.machines[name].gpus)) for name, count in gpus.items()}
    found[inputs.router.machine] = math.ceil(routers / inputs.router.replicas_per_machine)
    return found


def _engine_needs(inputs: Inputs, engines: Mapping[str, int]) -> list[Need]:
    return [
        Need(name, count, inputs.engines[name].max_replicas, "replicas, its `max_replicas` today", True)
        for name, count in engines.items()
    ]


def _api_needs(inputs: Inputs, rate_rps: float, asked: Mapping[str, Load]) -> list[Need]:
    needs: list[Need] = []
    for name, api in inputs.apis.items():
        load = asked[name]
        tokens = load.output_tokens + (load.input_tokens if api.counted == "all" else 0)
        if api.tokens_per_minute:
            needs.append(
                Need(name, rate_rps * tokens * 60, api.tokens_per_minute, "tokens a minute, its quota")
            )
        if api.requests_per_minute:
            needs.append(
                Need(
                    name, rate_rps * load.calls * 60, api.requests_per_minute, "requests a minute, its quota"
                )
            )
    return needs


def _apis_usd(inputs: Inputs, asked: Mapping[str, Load]) -> float:
    """Of one request."""
    return sum(
        (asked[name].input_tokens * api.usd_per_mtok_in + asked[name].output_tokens * api.usd_per_mtok_out)
        / 1e6
        for name, api in inputs.apis.items()
    )


def slice_of(sized: Sized, rate_rps: float) -> Sizes:
    """The sizes for a slice of the traffic: every station shrunk alike, rounded to whole replicas."""
    share = rate_rps / sized.rate_rps
    engines = {name: max(1, round(count * share)) for name, count in sized.sizes.engines.items()}
    quotas = {name: quota * share for name, quota in sized.sizes.quotas.items()}
    return Sizes(max(1, math.ceil(sized.sizes.routers * share)), engines, quotas)
