"""Load of a vLLM engine, from its scheduler's statistics."""

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import SchedulerStats

KV_FULL = 0.9
"""Share of the KV cache above which an engine starts to preempt requests and recompute them."""


class EngineLoad(StatLoggerBase):
    """The scheduler's latest statistics. One instance per engine; vLLM calls `record` after every step."""

    def __init__(self) -> None:
        self._stats = SchedulerStats()

    def for_engine(self, config: object, index: int = 0) -> "EngineLoad":
        """Return this instance: vLLM creates its loggers through a factory."""
        return self

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: Any = None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        self._stats = scheduler_stats or self._stats

    def log_engine_initialized(self) -> None:
        """Do nothing; vLLM requires the method."""

    @property
    def load(self) -> float:
        """Larger of cache use and queue length. 1.0 is a full engine; above it, requests wait."""
        running, waiting = self._stats.num_running_reqs, self._stats.num_waiting_reqs
        by_queue = (running + waiting) / max(running, 1) if waiting else 0.0
        return max(by_queue, self._stats.kv_cache_usage / KV_FULL)
