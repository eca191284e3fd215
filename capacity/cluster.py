"""A whole Podium at work: requests come, are planned and run under one of the three schedulers, and leave their times."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import simpy

from capacity import inputs
from capacity.arrivals import Times
from capacity.autoscaling import Pool
from capacity.plans import Plan
from capacity.schedulers import Scheduler
from capacity.stations import Api, Caller, Cores, Process

CHUNK_TOKENS = 64
"""The router's work on an answer is done in pieces of so many tokens, while it streams."""


@dataclass(frozen=True, slots=True)
class Served:
    """One request, in seconds of the simulated clock."""

    arrived_s: float
    planned_s: float
    first_token_s: float
    end_s: float


@dataclass(slots=True)
class Cluster:
    """The stations of a Podium.

    Args:
        env: the clock.
        router: what its CPU does.
        routers: one core each.
        conductor: who writes the plans.
        workers: by name in the pool.
        front: what every request passes first, such as Serve's proxy; none: it costs nothing.
        front_ms: CPU of that, half on the way in.
        streamed: whether answers are sent on token by token.
    """

    env: simpy.Environment
    router: inputs.Router
    routers: list[Cores]
    conductor: Caller
    workers: Mapping[str, Caller]
    rng: np.random.Generator
    front: Cores | None = None
    front_ms: float = 0.0
    streamed: bool = True
    served: list[Served] = field(default_factory=list[Served])

    def run(self, plans: Iterable[tuple[float, Plan]], mix: inputs.Plans, scheduler: Scheduler) -> Process:
        """Let each plan's request come at its time."""
        for at_s, plan in plans:
            yield self.env.timeout(max(0.0, at_s - self.env.now))
            self.env.process(self._request(plan, mix, scheduler))

    def _request(self, plan: Plan, mix: inputs.Plans, scheduler: Scheduler) -> Process:
        env, arrived_s = self.env, self.env.now
        core = self._router()
        yield env.timeout(self.router.http_ms / 2000)
        yield from self._fronted()
        yield from core.work(self.router.cpu_ms_per_request / 1000)
        prompt = mix.conductor_prompt_tokens * (1 - mix.prefix_cached) + plan.question_tokens
        ends = np.cumsum([step.written_tokens for step in plan.steps]).tolist()
        written = self.conductor.call(round(prompt), ends)
        ended = [env.event() for _ in plan.steps]
        spoke = env.event()
        for index in range(len(plan.steps)):
            env.process(self._step(plan, index, core, written, ended, spoke, scheduler))
        yield written[-1]
        planned_s = env.now
        yield spoke
        first_token_s = env.now
        yield ended[-1]
        if plan.second_look:
            yield from self._looked_at(plan, core, mix)
            first_token_s = env.now
        yield from self._fronted()
        yield env.timeout(self.router.http_ms / 2000)
        self.served.append(Served(arrived_s, planned_s, first_token_s, env.now))

    def _looked_at(self, plan: Plan, core: Cores, mix: inputs.Plans) -> Process:
        """The conductor reads the outcome and accepts it."""
        written_tokens = mix.second_look.written_tokens
        prompt = mix.conductor_prompt_tokens * (1 - mix.prefix_cached) + plan.looked_at_tokens
        yield self.conductor.call(round(prompt), [written_tokens])[-1]
        yield from core.work(written_tokens * self.router.cpu_ms_per_plan_token / 1000)

    def _fronted(self) -> Process:
        if self.front:
            yield from self.front.work(self.front_ms / 2000)

    def _step(
        self, plan: Plan, index: int, core: Cores, written: list[simpy.Event], ended: list[simpy.Event],
        spoke: simpy.Event, scheduler: Scheduler,
    ) -> Process:  # fmt: skip
        """See `schedulers.timeline` for who waits for what."""
        step, router = plan.steps[index], self.router
        yield written[index if scheduler == "podium" else -1]
        if scheduler == "sequential":
            yield self.env.all_of(ended[max(0, index - 1) : index])
        yield self.env.all_of([ended[read] for read in step.reads])
        if scheduler != "sequential" and written[-1].processed and index not in plan.needed:
            return  # a dead step that has not begun when that is known
        written_ms = step.written_tokens * router.cpu_ms_per_plan_token
        yield from core.work((router.cpu_ms_per_step + written_ms) / 1000)
        last = index == len(plan.steps) - 1
        marks = marked(step.output_tokens, CHUNK_TOKENS if last else step.output_tokens)
        said = self.workers[step.worker].call(step.input_tokens, marks)
        if last:
            yield said[0]
            yield written[-1]  # only then is it known to be the answer
            spoke.succeed()
        token_ms = (
            router.cpu_ms_per_answer_token
            if last and self.streamed and not plan.second_look
            else router.cpu_ms_per_inner_token
        )
        before = 0
        for mark, event in zip(marks, said, strict=True):
            yield event
            reading = self.env.process(core.work((mark - before) * token_ms / 1000))
            before = mark
        yield reading
        ended[index].succeed()

    def _router(self) -> Cores:
        two = self.rng.integers(0, len(self.routers), 2)
        return min((self.routers[int(index)] for index in two), key=lambda core: core.ongoing)


def marked(tokens: int, every: int) -> list[int]:
    """The counts of tokens to be told of: the first, each `every`, and the last."""
    return sorted({1, *range(every, tokens, every), tokens})


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many of each: router replicas, and replicas of each engine by name; `quota` times what each API allows."""

    routers: int
    engines: Mapping[str, int]
    quotas: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Run:
    """What a simulation left.

    Args:
        served: every request.
        busy: utilisation by station while requests came; of an engine, its work over what full batches would do.
        seen: replicas of each engine over time, where they were scaled; see `autoscaling.Pool.seen`.
    """

    served: list[Served]
    busy: Mapping[str, float]
    seen: Mapping[str, list[tuple[float, int, int]]]


def simulate(
    given: inputs.Inputs, sizes: Sizes, times: Times, plans: Iterable[Plan], *,
    scheduler: Scheduler = "podium", seed: int = 0, scale: bool = False, since_s: float = 0.0,
) -> Run:  # fmt: skip
    """Serve `plans`, which come at `times`, until all have ended.

    Args:
        given: the inputs.
        sizes: replicas at the start, and for ever unless `scale`.
        times: of the arrivals.
        plans: as many.
        scheduler: which of the three.
        seed: of everything that is drawn on the way.
        scale: let Serve's autoscaling change the engines' replicas.
        since_s: utilisation is counted from here to the last arrival.
    """
    env = simpy.Environment()
    seeds = np.random.SeedSequence(seed).spawn(2 + len(given.engines) + len(given.apis))
    rngs = [np.random.default_rng(each) for each in seeds]
    pools = {n: Pool(env, e, sizes.engines.get(n, 1), rngs.pop()) for n, e in given.engines.items()}
    apis = {n: Api(env, a, rngs.pop(), sizes.quotas.get(n, 1.0)) for n, a in given.apis.items()}
    callers: dict[str, Caller] = {
        name: pools[worker.engine] if worker.engine else apis[worker.api or ""]
        for name, worker in given.workers.items()
    }
    routers = [Cores(env) for _ in range(max(1, sizes.routers))]
    cluster = Cluster(env, given.router, routers, pools[given.conductor], callers, rngs.pop())
    policy = given.autoscaling
    for name, pool in pools.items() if scale else ():
        env.process(pool.scaled(policy, policy.target_ongoing_requests[name], 10**6))
    coming = env.process(cluster.run(zip(times.tolist(), plans, strict=True), given.plans, scheduler))
    if since_s:
        env.run(until=since_s)
    before = _work_s(pools, routers)
    env.run(until=coming)
    count = {"router": len(routers)} | {name: len(pool.replicas) for name, pool in pools.items()}
    busy = {
        name: (work_s - before[name]) / (env.now - since_s) / count[name]
        for name, work_s in _work_s(pools, routers).items()
    }
    while len(cluster.served) < len(times):
        env.step()
    return Run(cluster.served, busy, {name: pool.seen for name, pool in pools.items()})


def _work_s(pools: Mapping[str, Pool], routers: list[Cores]) -> dict[str, float]:
    return {"router": sum(core.busy_s for core in routers)} | {
        name: pool.work_s for name, pool in pools.items()
    }


def percentile(values: Iterable[float], share: float) -> float:
    """The nearest-rank percentile; nan of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan
