"""Simulated Podium: requests arrive, are planned and run, and their times are kept."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import simpy

from loadtest.capacity import inputs
from loadtest.capacity.arrivals import Times
from loadtest.capacity.plans import SimulatedPlan
from loadtest.capacity.stations import ApiStation, Cores, Process, ReplicaPool, TokenSource

CHUNK_TOKENS = 64
"""Number of tokens per chunk of a streamed answer. The router works once per chunk."""


@dataclass(frozen=True, slots=True)
class RequestTimes:
    arrived_s: float
    planned_s: float
    first_token_s: float
    end_s: float


@dataclass(slots=True)
class SimulatedCluster:
    """Simulated cluster: the stations that a request passes.

    Args:
        router: the CPU costs of a router.
        front: the station that every request passes first, such as Serve's proxy, or None.
        front_ms: the CPU milliseconds that a request uses at `front`, half of them on its way in.
    """

    env: simpy.Environment
    router: inputs.RouterInputs
    routers: list[Cores]
    conductor: TokenSource
    workers: Mapping[str, TokenSource]
    rng: np.random.Generator
    front: Cores | None = None
    front_ms: float = 0.0
    streamed: bool = True
    requests: list[RequestTimes] = field(default_factory=list[RequestTimes])

    def run(self, plans: Iterable[tuple[float, SimulatedPlan]], mix: inputs.Plans) -> Process:
        """Start the request of each plan at its arrival time."""
        for at_s, plan in plans:
            yield self.env.timeout(max(0.0, at_s - self.env.now))
            self.env.process(_Request(self, plan, mix, self.pick_router()).run())

    def pick_router(self) -> Cores:
        """Draw two random routers, and return the less busy one."""
        two = self.rng.integers(0, len(self.routers), 2)
        return min((self.routers[int(index)] for index in two), key=lambda core: core.ongoing)

    def pass_front(self) -> Process:
        """Pass the front station in one direction, at half of `front_ms`."""
        if self.front:
            yield from self.front.work(self.front_ms / 2000)


class _Request:
    def __init__(
        self, cluster: SimulatedCluster, plan: SimulatedPlan, mix: inputs.Plans, core: Cores
    ) -> None:
        self.cluster, self.plan, self.mix, self.core = cluster, plan, mix, core
        self.env, self.router = cluster.env, cluster.router
        self.written_events: list[simpy.Event] = []
        self.ends = [self.env.event() for _ in plan.steps]
        self.first_token = self.env.event()

    def run(self) -> Process:
        env, arrived_s = self.env, self.env.now
        yield env.timeout(self.router.http_ms / 2000)
        yield from self.cluster.pass_front()
        yield from self.core.work(self.router.cpu_ms_per_request / 1000)
        ends = np.cumsum([step.written_tokens for step in self.plan.steps]).tolist()
        self.written_events = self.call_conductor(self.plan.question_tokens, ends)
        for index in range(len(self.plan.steps)):
            env.process(self.step(index))
        yield self.written_events[-1]
        planned_s = env.now
        yield self.first_token
        first_token_s = env.now
        yield self.ends[-1]
        if self.plan.second_look:
            yield from self.review()
            first_token_s = env.now
        yield from self.cluster.pass_front()
        yield env.timeout(self.router.http_ms / 2000)
        self.cluster.requests.append(RequestTimes(arrived_s, planned_s, first_token_s, env.now))

    def call_conductor(self, tokens: int, marks: list[int]) -> list[simpy.Event]:
        """Call the conductor. Its prompt is the part that is not cached, plus `tokens`."""
        prompt_tokens = self.mix.conductor_prompt_tokens * (1 - self.mix.prefix_cached) + tokens
        return self.cluster.conductor.call(round(prompt_tokens), marks)

    def review(self) -> Process:
        """Let the conductor read the outcome and accept it, as in a second round."""
        written_tokens = self.mix.second_look.written_tokens
        yield self.call_conductor(self.plan.review_tokens, [written_tokens])[-1]
        yield from self.core.work(written_tokens * self.router.cpu_ms_per_plan_token / 1000)

    def step(self, index: int) -> Process:
        """Simulate a step. It starts as soon as it is written and the steps that it reads have ended."""
        step, plan, router = self.plan.steps[index], self.plan, self.router
        yield self.written_events[index]
        yield self.env.all_of([self.ends[read] for read in step.reads])
        if self.written_events[-1].processed and index not in plan.reachable:
            return  # once the plan is complete, an unread step that has not started is not run
        written_ms = step.written_tokens * router.cpu_ms_per_plan_token
        yield from self.core.work((router.cpu_ms_per_step + written_ms) / 1000)
        is_last = index == len(plan.steps) - 1
        marks = chunk_ends(step.output_tokens, CHUNK_TOKENS if is_last else step.output_tokens)
        chunks = self.cluster.workers[step.worker].call(step.input_tokens, marks)
        if is_last:
            yield chunks[0]
            yield self.written_events[
                -1
            ]  # the last step is known to be the answer only when the plan is complete
            self.first_token.succeed()
        is_streamed = is_last and self.cluster.streamed and not plan.second_look
        token_ms = router.cpu_ms_per_answer_token if is_streamed else router.cpu_ms_per_inner_token
        before, reading = 0, None
        for mark, event in zip(marks, chunks, strict=True):
            yield event
            reading = self.env.process(self.core.work((mark - before) * token_ms / 1000))
            before = mark
        if reading is not None:
            yield reading
        self.ends[index].succeed()


def chunk_ends(tokens: int, every: int) -> list[int]:
    """Return the token counts at which a chunk ends: 1, multiples of `every` after it, and the last."""
    return sorted({1, *range(every, tokens, every), tokens})


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of router replicas and of replicas by engine, and a factor for each API's quota."""

    routers: int
    engines: Mapping[str, int]
    quotas: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """Result of a simulation. `busy` is the utilisation of each station, for engines relative to full
    batches.
    """

    requests: list[RequestTimes]
    busy: Mapping[str, float]


def simulate(
    params: inputs.Inputs,
    sizes: Sizes,
    times: Times,
    plans: Iterable[SimulatedPlan],
    *,
    seed: int = 0,
    since_s: float = 0.0,
) -> SimulatedRun:
    """Simulate `plans` that arrive at `times` to their end. Utilisation is measured from `since_s` to the
    last arrival.
    """
    env = simpy.Environment()
    seeds = np.random.SeedSequence(seed).spawn(2 + len(params.engines) + len(params.apis))
    rngs = [np.random.default_rng(each) for each in seeds]
    pools = {n: ReplicaPool(env, e, sizes.engines.get(n, 1), rngs.pop()) for n, e in params.engines.items()}
    apis = {n: ApiStation(env, a, rngs.pop(), sizes.quotas.get(n, 1.0)) for n, a in params.apis.items()}
    callers: dict[str, TokenSource] = {
        name: pools[worker.engine] if worker.engine else apis[worker.api or ""]
        for name, worker in params.workers.items()
    }
    routers = [Cores(env) for _ in range(max(1, sizes.routers))]
    cluster = SimulatedCluster(env, params.router, routers, pools[params.conductor], callers, rngs.pop())
    arrivals = env.process(cluster.run(zip(times.tolist(), plans, strict=True), params.plans))
    if since_s:
        env.run(until=since_s)
    before = _work_s(pools, routers)
    env.run(until=arrivals)
    count = {"router": len(routers)} | {name: len(pool.replicas) for name, pool in pools.items()}
    busy = {
        name: (work_s - before[name]) / (env.now - since_s) / count[name]
        for name, work_s in _work_s(pools, routers).items()
    }
    while len(cluster.requests) < len(times):
        env.step()
    return SimulatedRun(cluster.requests, busy)


def _work_s(pools: Mapping[str, ReplicaPool], routers: list[Cores]) -> dict[str, float]:
    busy_s = {"router": sum(core.busy_s for core in routers)}
    return busy_s | {name: pool.work_s for name, pool in pools.items()}
