"""Simulate the server that `calibrate.py` measured: its arrivals, the times of its script, one router and one
proxy.
"""

from collections.abc import Sequence

import numpy as np
import simpy

from loadtest import percentile
from loadtest.capacity import inputs
from loadtest.capacity.arrivals import Times, poisson
from loadtest.capacity.cluster import RequestTimes, SimulatedCluster
from loadtest.capacity.plans import SimulatedPlan, SimulatedStep
from loadtest.capacity.stations import Cores


class TimedWorker:
    def __init__(self, env: simpy.Environment, first_token_s: float, token_ms: float) -> None:
        self.env, self.first_token_s, self.token_ms = env, first_token_s, token_ms

    def call(self, prompt_tokens: int, marks: Sequence[int]) -> list[simpy.Event]:
        return [self.env.timeout(self.first_token_s + (mark - 1) * self.token_ms / 1000) for mark in marks]


def simulate_script(
    params: inputs.Inputs, real: inputs.Checked, times: Times, at: inputs.CheckedRate
) -> list[RequestTimes]:
    """Simulate the script's plan for requests that arrive at `times`, with the router's usual costs."""
    env = simpy.Environment()
    cluster = SimulatedCluster(
        env,
        params.router,
        routers=[Cores(env)],
        conductor=TimedWorker(env, 0, real.conductor_token_ms),
        workers={step.worker: TimedWorker(env, step.first_token_s, step.token_ms) for step in real.steps},
        rng=np.random.default_rng(0),
        front=Cores(env),
        front_ms=at.proxy_cpu_ms,
        streamed=at.streamed,
    )
    steps = tuple(SimulatedStep(s.worker, s.reads, s.written_tokens, 1, s.output_tokens) for s in real.steps)
    env.process(cluster.run(((float(at_s), SimulatedPlan(steps, 1)) for at_s in times), params.plans))
    env.run()
    return cluster.requests


def compare_rate(params: inputs.Inputs, real: inputs.Checked, at: inputs.CheckedRate) -> dict[str, float]:
    """Compare the measurement at one rate with its simulation. The result includes the relative errors."""
    times = poisson(at.rate_rps, real.duration_s, np.random.default_rng(at.seed))
    requests = simulate_script(params, real, times, at)
    times_ms = [1000 * (each.end_s - each.arrived_s) for each in requests]
    simulated = {
        "p50_ms": percentile(times_ms, 50),
        "p95_ms": percentile(times_ms, 95),
        "done_rps": steady_rate([each.end_s for each in requests], real.duration_s),
        "router_cpu_ms": script_cpu_ms(params.router, real, streamed=at.streamed),
    }
    row: dict[str, float] = {"rate_rps": at.rate_rps, "streamed": at.streamed}
    for name, value in simulated.items():
        measured = float(getattr(at, name))
        row |= {f"real_{name}": measured, f"simulated_{name}": value, f"error_{name}": value / measured - 1}
    return row


def steady_rate(ends_s: Sequence[float], duration_s: float) -> float:
    """Return the answers per second in the second half of the arrivals, when the rate has settled."""
    return sum(duration_s / 2 <= at_s < duration_s for at_s in ends_s) / (duration_s / 2)


def script_cpu_ms(router: inputs.RouterInputs, real: inputs.Checked, *, streamed: bool) -> float:
    """Return the calculated CPU milliseconds of the script. Tokens of texts sent in one piece do not count."""
    inner, last = real.steps[:-1], real.steps[-1]
    return router.cpu_ms(
        steps=len(real.steps),
        plan_tokens=sum(step.written_tokens for step in real.steps),
        inner_tokens=sum(step.output_tokens for step in inner if step.token_ms),
        answer_tokens=last.output_tokens,
        streamed=streamed,
    )


def compare_cpu(params: inputs.Inputs, real: inputs.Checked) -> list[dict[str, float]]:
    """Compare the router's measured and calculated CPU time for requests that no cost was fitted to."""
    rows: list[dict[str, float]] = []
    for each in real.mixed:
        computed_ms = params.router.cpu_ms(
            steps=each.steps,
            plan_tokens=0,
            inner_tokens=each.inner_tokens,
            answer_tokens=each.answer_tokens,
            streamed=each.streamed,
        )
        measured_ms = each.router_cpu_ms
        times = {"real_ms": measured_ms, "computed_ms": computed_ms, "error": computed_ms / measured_ms - 1}
        rows.append({"streamed": each.streamed} | times)
    return rows
