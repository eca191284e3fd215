"""The real, scripted server of `check.py`, simulated: the same arrivals, its script's times, one router and one proxy."""

from collections.abc import Sequence

import numpy as np
import simpy

from loadtest.simulator import inputs
from loadtest.simulator.arrivals import Times, poisson
from loadtest.simulator.cluster import Cluster, Served, percentile
from loadtest.simulator.plans import Plan, Step
from loadtest.simulator.stations import Cores


class Scripted:
    """A worker that takes as long as its script says."""

    def __init__(self, env: simpy.Environment, first_token_s: float, token_ms: float) -> None:
        self.env, self.first_token_s, self.token_ms = env, first_token_s, token_ms

    def call(self, prompt_tokens: int, marks: Sequence[int]) -> list[simpy.Event]:
        """See `stations.Caller.call`."""
        return [self.env.timeout(self.first_token_s + (mark - 1) * self.token_ms / 1000) for mark in marks]


def served_like(given: inputs.Inputs, real: inputs.Checked, times: Times) -> list[Served]:
    """Serve the script's plan at `times`. The router's CPU is spread evenly over the request and its steps."""
    env = simpy.Environment()
    share_ms = real.router_cpu_ms / (1 + len(real.steps))
    costs = {"cpu_ms_per_request": share_ms, "cpu_ms_per_step": share_ms, "http_ms": real.http_ms}
    costs |= {"cpu_ms_per_inner_token": 0, "cpu_ms_per_answer_token": 0}
    router = given.router.model_copy(update=costs)
    workers = {step.worker: Scripted(env, step.first_token_s, step.token_ms) for step in real.steps}
    conductor = Scripted(env, 0, real.conductor_token_ms)
    front = Cores(env)
    cluster = Cluster(
        env, router, [Cores(env)], conductor, workers, np.random.default_rng(0), front, real.proxy_cpu_ms
    )
    steps = tuple(Step(s.worker, s.reads, s.written_tokens, 1, s.output_tokens) for s in real.steps)
    env.process(cluster.run(((float(at_s), Plan(steps, 1)) for at_s in times), given.plans, "podium"))
    env.run()
    return cluster.served


def compared(given: inputs.Inputs, real: inputs.Checked, at: inputs.CheckedRate) -> dict[str, float]:
    """One rate, real and simulated, and the simulation's relative errors."""
    times = poisson(at.rate_rps, real.duration_s, np.random.default_rng(at.seed))
    served = served_like(given, real, times)
    took_ms = [1000 * (each.end_s - each.arrived_s) for each in served]
    done_rps = rate_of([each.end_s for each in served], real.duration_s)
    simulated = {
        "p50_ms": percentile(took_ms, 0.5),
        "p95_ms": percentile(took_ms, 0.95),
        "done_rps": done_rps,
    }
    row = {"rate_rps": at.rate_rps}
    for name, value in simulated.items():
        was = float(getattr(at, name))
        row |= {f"real_{name}": was, f"simulated_{name}": value, f"error_{name}": value / was - 1}
    return row


def rate_of(ended_s: Sequence[float], duration_s: float) -> float:
    """Answers a second in the later half of the arrivals' time, when the pace has settled."""
    return sum(duration_s / 2 <= at_s < duration_s for at_s in ended_s) / (duration_s / 2)
