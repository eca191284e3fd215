"""A pool of engines that Ray Serve scales: the mean of ongoing requests over a look-back, a target for each replica, delays.

After `ray.serve.config.AutoscalingConfig` and its default policy: the wish must hold for the whole of a delay before it is
granted, a new replica serves after its cold start, and one that goes finishes what it has, which no longer counts. Two are looked at for each call, and
the one with less to do gets it (Serve's power of two choices).
"""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import simpy

from capacity import inputs
from capacity.stations import Engine, Process


class Pool:
    """Replicas of one engine behind one handle."""

    def __init__(
        self, env: simpy.Environment, spec: inputs.Engine, replicas: int, rng: np.random.Generator
    ) -> None:
        self.env, self.spec, self.rng = env, spec, rng
        self.replicas = [Engine(env, spec) for _ in range(max(1, replicas))]
        self.leaving: list[Engine] = []
        self.starting = 0
        self.seen: list[tuple[float, int, int]] = []
        """Over time: seconds, replicas that serve, replicas paid for."""

    @property
    def ongoing(self) -> int:
        """Calls running and queued."""
        return sum(replica.ongoing for replica in self.replicas)

    @property
    def work_s(self) -> float:
        """What has been done; see `stations.Engine.work_s`."""
        return sum(replica.work_s for replica in (*self.replicas, *self.leaving))

    def call(self, prompt_tokens: int, marks: Sequence[int]) -> list[simpy.Event]:
        """See `stations.Caller.call`."""
        two = self.rng.integers(0, len(self.replicas), 2)
        replica = min((self.replicas[int(index)] for index in two), key=lambda each: each.ongoing)
        return replica.call(prompt_tokens, marks)

    def scaled(self, policy: inputs.Autoscaling, target: float, most: int) -> Process:
        """Scale for ever between one replica and `most`."""
        kept = max(1, round(policy.look_back_s / policy.interval_s))
        looked: deque[int] = deque(maxlen=kept)
        wished_s = 0.0
        wish_before = 0
        while True:
            looked.append(self.ongoing)
            self.leaving = [engine for engine in self.leaving if engine.ongoing]
            have = len(self.replicas) + self.starting
            self.seen.append((self.env.now, len(self.replicas), have + len(self.leaving)))
            want = min(most, max(1, math.ceil(sum(looked) / len(looked) / target)))
            wish = (want > have) - (want < have)
            wished_s = wished_s + policy.interval_s if wish and wish == wish_before else 0.0
            wish_before = wish
            delay_s = policy.upscale_delay_s if wish > 0 else policy.downscale_delay_s
            if wish and wished_s >= delay_s:
                self._grow(want - have)
                self._shrink(min(have - want, len(self.replicas) - 1))
                wished_s = 0.0
            yield self.env.timeout(policy.interval_s)

    def _grow(self, by: int) -> None:
        for _ in range(by):
            self.starting += 1
            self.env.process(self._started())

    def _started(self) -> Process:
        yield self.env.timeout(self.spec.cold_start_s)
        self.starting -= 1
        self.replicas.append(Engine(self.env, self.spec))

    def _shrink(self, by: int) -> None:
        for _ in range(by):
            self.leaving.append(self.replicas.pop())
