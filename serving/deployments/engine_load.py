"""Load of a vLLM engine, computed from the statistics of its scheduler."""

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import SchedulerStats

KV_FULL = 0.9
"""Share of the KV cache at which an engine counts as full. Above it, vLLM preempts and recomputes requests.
"""


class EngineLoad(StatLoggerBase):
    """Latest statistics of an engine's scheduler. vLLM calls `record` after every step."""

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
        """Do nothing. vLLM requires this method."""

    @property
    def load(self) -> float:
        """Load by cache use or queue length, whichever is larger. Above 1.0, requests wait."""
        running, waiting = self._stats.num_running_reqs, self._stats.num_waiting_reqs
        by_queue = (running + waiting) / max(running, 1) if waiting else 0.0
        return max(by_queue, self._stats.kv_cache_usage / KV_FULL)
