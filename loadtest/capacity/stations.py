"""Stations where a simulated request spends its time: cores, a vLLM engine and a provider's API.

An engine models continuous batching as a fluid. All sequences that are decoded get tokens at the same rate,
which depends on their number. Prompts are read one after another, a chunk per step, and slow the decoding
meanwhile (vLLM's chunked prefill).
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import simpy

from loadtest.capacity import inputs

Process = Generator[simpy.Event, Any, None]
TINY = 1e-6
"""Tolerance as a fraction of a step, large enough for a clock that has run for weeks."""


def _on(event: Any, do: Callable[[simpy.Event], None]) -> None:
    event.callbacks.append(do)


class TokenSource(Protocol):
    def call(self, prompt_tokens: int, marks: Sequence[int]) -> list[simpy.Event]:
        """Start a call. Return an event per token count in `marks`, which ascend; the last ends the call."""
        ...


class Cores:
    """Equal cores that share one queue. `busy_s` is the work that they have done."""

    def __init__(self, env: simpy.Environment, count: int = 1) -> None:
        self.env, self.busy_s = env, 0.0
        self._cores: Any = simpy.Resource(env, count)

    @property
    def ongoing(self) -> int:
        """Number of running and queued calls."""
        return self._cores.count + len(self._cores.queue)

    def work(self, seconds: float) -> Process:
        """Use a core for `seconds`. A process waits for this with `yield from`."""
        if seconds <= 0:
            return
        with self._cores.request() as core:
            yield core
            yield self.env.timeout(seconds)
        self.busy_s += seconds


def full_batch_s(spec: inputs.EngineSpec, prompt_tokens: float, output_tokens: float) -> float:
    """Return the seconds that a replica needs for these tokens at a full batch."""
    token_s = spec.step_s(spec.batch) / spec.batch
    return output_tokens * token_s + prompt_tokens / spec.prefill_tokens_per_s


@dataclass(slots=True)
class _Prompt:
    """Call whose prompt has not been read completely."""

    left_tokens: float
    work_s: float
    marks: Sequence[int]
    events: list[simpy.Event]


class EngineReplica:
    """vLLM replica. `work_s` is the time that its completed calls would have taken in full batches."""

    def __init__(self, env: simpy.Environment, spec: inputs.EngineSpec) -> None:
        self.env, self.spec = env, spec
        self.ongoing, self.work_s = 0, 0.0
        self._step_s = [0.0, *(spec.step_s(count + 1) for count in range(spec.batch))]
        self._token_s = full_batch_s(spec, 0, 1)
        self._chunk_s = spec.chunk_tokens / spec.prefill_tokens_per_s
        self._queue: deque[_Prompt] = deque()
        self._prompts: deque[_Prompt] = deque()
        self._due: list[tuple[float, int, float | None, simpy.Event]] = []
        self._order = itertools.count()
        self._decoding, self._paced, self._at_s, self._wakes = 0, 0.0, env.now, 0

    def call(self, prompt_tokens: int, marks: Sequence[int]) -> list[simpy.Event]:
        self._advance()
        events = [self.env.event() for _ in marks]
        self.ongoing += 1
        work_s = marks[-1] * self._token_s + prompt_tokens / self.spec.prefill_tokens_per_s
        self._queue.append(_Prompt(float(max(prompt_tokens, 1)), work_s, marks, events))
        self._admit()
        self._schedule()
        return events

    def _admit(self) -> None:
        while self._queue and self._decoding + len(self._prompts) < self.spec.batch:
            self._prompts.append(self._queue.popleft())

    def _present_step_s(self) -> float:
        """Return the seconds of a step in the engine's current state."""
        return self._step_s[self._decoding] + (self._chunk_s if self._prompts else 0.0)

    def _advance(self) -> None:
        """Advance all tokens and prompts to the current time."""
        passed_s = self.env.now - self._at_s
        self._at_s = self.env.now
        if not (self._decoding or self._prompts) or passed_s <= 0:
            return
        steps = passed_s / self._present_step_s()
        self._paced += steps
        if self._prompts:
            self._prompts[0].left_tokens -= steps * self.spec.chunk_tokens

    def _schedule(self) -> None:
        """Schedule the next wake-up, which replaces the previous one."""
        self._wakes += 1
        steps = [max(0.0, self._due[0][0] - self._paced)] if self._due else []
        if self._prompts:
            steps.append(max(0.0, self._prompts[0].left_tokens) / self.spec.chunk_tokens)
        if steps:
            wake = self.env.timeout(min(steps) * self._present_step_s(), value=self._wakes)
            _on(wake, self._wake)

    def _wake(self, timeout: simpy.Event) -> None:
        if timeout.value != self._wakes:
            return
        self._advance()
        if self._prompts and self._prompts[0].left_tokens <= TINY * self.spec.chunk_tokens:
            self._decode(self._prompts.popleft())
        while self._due and self._due[0][0] - self._paced <= TINY:
            _, _, work_s, event = heapq.heappop(self._due)
            event.succeed()
            if work_s is not None:
                self._decoding -= 1
                self.ongoing -= 1
                self.work_s += work_s
        self._admit()
        self._schedule()

    def _decode(self, prompt: _Prompt) -> None:
        self._decoding += 1
        for mark, event in zip(prompt.marks, prompt.events, strict=True):
            work_s = prompt.work_s if event is prompt.events[-1] else None
            heapq.heappush(self._due, (self._paced + mark, next(self._order), work_s, event))


class ReplicaPool:
    """Replicas of one engine that share a Serve handle.

    For each call, Serve compares two random replicas and sends it to the one with fewer requests (power of
    two choices).
    """

    def __init__(
        self, env: simpy.Environment, spec: inputs.EngineSpec, replicas: int, rng: np.random.Generator
    ) -> None:
        self.rng, self.replicas = rng, [EngineReplica(env, spec) for _ in range(max(1, replicas))]

    @property
    def work_s(self) -> float:
        """Total work done; see `EngineReplica.work_s`."""
        return sum(replica.work_s for replica in self.replicas)

    def call(self, prompt_tokens: int, marks: Sequence[int]) -> list[simpy.Event]:
        two = self.rng.integers(0, len(self.replicas), 2)
        replica = min((self.replicas[int(index)] for index in two), key=lambda each: each.ongoing)
        return replica.call(prompt_tokens, marks)


class ApiStation:
    """Model that a provider serves: a lognormal time to first token, then a constant token rate.

    A call that exceeds the quota waits. The quota limits the rate at which calls start (the generic cell rate
    algorithm with a burst of one minute). All tokens of a call count when it starts.
    """

    def __init__(
        self, env: simpy.Environment, spec: inputs.ApiSpec, rng: np.random.Generator, quota: float = 1.0
    ) -> None:
        self.env, self.spec, self.rng = env, spec, rng
        self.ongoing = 0
        per_minute = spec.requests_per_minute, spec.tokens_per_minute
        self._per_call_s, self._per_token_s = (60 / (limit * quota) if limit else 0.0 for limit in per_minute)
        self._free_s = [-60.0, -60.0]

    def call(self, prompt_tokens: int, marks: Sequence[int]) -> list[simpy.Event]:
        quota_tokens = marks[-1] + (prompt_tokens if self.spec.counted == "all" else 0)
        costs_s = (self._per_call_s, quota_tokens * self._per_token_s)
        begin_s = self.env.now
        for index, cost_s in enumerate(costs_s):
            self._free_s[index] = max(self._free_s[index], self.env.now - 60) + cost_s
            begin_s = max(begin_s, self._free_s[index])
        self.ongoing += 1
        first_s = begin_s - self.env.now + self._first_token_s()
        events = [self.env.timeout(first_s + (mark - 1) * self.spec.token_ms / 1000) for mark in marks]
        _on(events[-1], self._end_call)
        return list(events)

    def _first_token_s(self) -> float:
        return float(self.rng.lognormal(math.log(self.spec.first_token_s), self.spec.first_token_sigma))

    def _end_call(self, _: simpy.Event) -> None:
        self.ongoing -= 1
