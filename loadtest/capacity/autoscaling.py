"""Pool of engine replicas that Ray Serve scales, for the simulation.

It is modelled after `ray.serve.config.AutoscalingConfig` and its default policy: Serve compares the mean
number of ongoing requests with a target per replica, and acts when a decision has held for a whole delay. A
new replica serves after its cold start. A stopping replica finishes its requests, which no longer count. For
each call, Serve compares two random replicas and sends it to the one with fewer requests (power of two
choices).
"""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import simpy

from loadtest.capacity import inputs
from loadtest.capacity.stations import EngineReplica, Process


class ReplicaPool:
    """Replicas of one engine that share a Serve handle."""

    def __init__(
        self, env: simpy.Environment, spec: inputs.EngineSpec, replicas: int, rng: np.random.Generator
    ) -> None:
        self.env, self.spec, self.rng = env, spec, rng
        self.replicas = [EngineReplica(env, spec) for _ in range(max(1, replicas))]
        self.stopping: list[EngineReplica] = []
        self.starting = 0
        self.history: list[tuple[float, int, int]] = []
        """Samples over time: the seconds, the replicas that serve, and the replicas that are paid for."""

    @property
    def ongoing(self) -> int:
        """Number of running and queued calls."""
        return sum(replica.ongoing for replica in self.replicas)

    @property
    def work_s(self) -> float:
        """Total work done; see `stations.EngineReplica.work_s`."""
        return sum(replica.work_s for replica in (*self.replicas, *self.stopping))

    def call(self, prompt_tokens: int, marks: Sequence[int]) -> list[simpy.Event]:
        """Send a call to a replica; see `stations.TokenSource.call`."""
        two = self.rng.integers(0, len(self.replicas), 2)
        replica = min((self.replicas[int(index)] for index in two), key=lambda each: each.ongoing)
        return replica.call(prompt_tokens, marks)

    def autoscale(self, policy: inputs.Autoscaling, target: float, most: int) -> Process:
        """Scale the pool between one and `most` replicas until the simulation ends."""
        window: deque[int] = deque(maxlen=max(1, round(policy.look_back_period_s / policy.interval_s)))
        held_s = 0.0
        last_decision = 0
        while True:
            window.append(self.ongoing)
            self.stopping = [engine for engine in self.stopping if engine.ongoing]
            have = len(self.replicas) + self.starting
            self.history.append((self.env.now, len(self.replicas), have + len(self.stopping)))
            want = min(most, max(1, math.ceil(sum(window) / len(window) / target)))
            decision = (want > have) - (want < have)
            held_s = held_s + policy.interval_s if decision and decision == last_decision else 0.0
            last_decision = decision
            delay_s = policy.upscale_delay_s if decision > 0 else policy.downscale_delay_s
            if decision and held_s >= delay_s:
                self._grow(want - have)
                self._shrink(min(have - want, len(self.replicas) - 1))
                held_s = 0.0
            yield self.env.timeout(policy.interval_s)

    def _grow(self, by: int) -> None:
        for _ in range(by):
            self.starting += 1
            self.env.process(self._start_replica())

    def _start_replica(self) -> Process:
        yield self.env.timeout(self.spec.cold_start_s)
        self.starting -= 1
        self.replicas.append(EngineReplica(self.env, self.spec))

    def _shrink(self, by: int) -> None:
        for _ in range(by):
            self.stopping.append(self.replicas.pop())
