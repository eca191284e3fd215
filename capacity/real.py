"""The real, scripted server of `check.py`, simulated: the same arrivals, its script's times, one router and one proxy."""

from collections.abc import Sequence

import numpy as np
import simpy

from capacity import inputs
from capacity.arrivals import Times, poisson
from capacity.cluster import Cluster, Served, percentile
from capacity.plans import Plan, Step
from capacity.stations import Cores


class Scripted:
    """A worker that takes as long as its script says."""

    def __init__(self, env: simpy.Environment, first_token_s: float, token_ms: float) -> None:
        self.env, self.first_token_s, self.token_ms = env, first_token_s, token_ms

    def call(self, prompt_tokens: int, marks: Sequence[int]) -> list[simpy.Event]:
        """See `stations.Caller.call`."""
        return [self.env.timeout(self.first_token_s + (mark - 1) * self.token_ms / 1000) for mark in marks]


def served_like(
    given: inputs.Inputs, real: inputs.Checked, times: Times, at: inputs.CheckedRate
) -> list[Served]:
    """Serve the script's plan at `times`, streamed or not as `at` was, with the router's costs as every other simulation has them."""
    env = simpy.Environment()
    workers = {step.worker: Scripted(env, step.first_token_s, step.token_ms) for step in real.steps}
    conductor = Scripted(env, 0, real.conductor_token_ms)
    front = Cores(env)
    cluster = Cluster(
        env,
        given.router,
        [Cores(env)],
        conductor,
        workers,
        np.random.default_rng(0),
        front,
        at.proxy_cpu_ms,
        at.streamed,
    )
    steps = tuple(Step(s.worker, s.reads, s.written_tokens, 1, s.output_tokens) for s in real.steps)
    env.process(cluster.run(((float(at_s), Plan(steps, 1)) for at_s in times), given.plans, "podium"))
    env.run()
    return cluster.served


def compared(given: inputs.Inputs, real: inputs.Checked, at: inputs.CheckedRate) -> dict[str, float]:
    """One rate, real and simulated, and the simulation's relative errors."""
    times = poisson(at.rate_rps, real.duration_s, np.random.default_rng(at.seed))
    served = served_like(given, real, times, at)
    took_ms = [1000 * (each.end_s - each.arrived_s) for each in served]
    done_rps = rate_of([each.end_s for each in served], real.duration_s)
    simulated = {
        "p50_ms": percentile(took_ms, 0.5),
        "p95_ms": percentile(took_ms, 0.95),
        "done_rps": done_rps,
    }
    row: dict[str, float] = {"rate_rps": at.rate_rps, "streamed": at.streamed}
    simulated["router_cpu_ms"] = script_cpu_ms(given.router, real, streamed=at.streamed)
    for name, value in simulated.items():
        was = float(getattr(at, name))
        row |= {f"real_{name}": was, f"simulated_{name}": value, f"error_{name}": value / was - 1}
    return row


def rate_of(ended_s: Sequence[float], duration_s: float) -> float:
    """Answers a second in the later half of the arrivals' time, when the pace has settled."""
    return sum(duration_s / 2 <= at_s < duration_s for at_s in ended_s) / (duration_s / 2)


def script_cpu_ms(router: inputs.Router, real: inputs.Checked, *, streamed: bool) -> float:
    """The router's CPU for a request of the script, as `sizing` reckons it; a text that comes whole is no tokens."""
    inner, last = real.steps[:-1], real.steps[-1]
    return router.cpu_ms(
        steps=len(real.steps),
        plan_tokens=sum(step.written_tokens for step in real.steps),
        inner_tokens=sum(step.output_tokens for step in inner if step.token_ms),
        answer_tokens=last.output_tokens, streamed=streamed,
    )  # fmt: skip


def foretold(given: inputs.Inputs, real: inputs.Checked) -> list[dict[str, float]]:
    """Requests that no cost was fitted to: the router's CPU as it was and as reckoned, and the reckoning's relative error."""
    rows: list[dict[str, float]] = []
    for each in real.mixed:
        reckoned = given.router.cpu_ms(
            steps=each.steps, plan_tokens=0, inner_tokens=each.inner_tokens,
            answer_tokens=each.answer_tokens, streamed=each.streamed,
        )  # fmt: skip
        was = each.router_cpu_ms
        rows.append(
            {"streamed": each.streamed, "real_ms": was, "reckoned_ms": reckoned, "error": reckoned / was - 1}
        )
    return rows
