"""How full a vLLM engine is, by its own scheduler's figures."""

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import SchedulerStats

KV_FULL = 0.9
"""With more of its cache in use than this, an engine begins to preempt requests and to do their work
again."""


class EngineLoad(StatLoggerBase):
    """Keeps what the scheduler reported last. One instance per engine; vLLM calls `record` after every step."""

    def __init__(self) -> None:
        self._stats = SchedulerStats()

    def for_engine(self, config: object, index: int = 0) -> "EngineLoad":
        """Itself: vLLM asks for a logger by a factory."""
        return self

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: Any = None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """See `StatLoggerBase.record`."""
        self._stats = scheduler_stats or self._stats

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    @property
    def load(self) -> float:
        """1.0 is a full engine; above it, requests wait. The greater of cache in use and of what asks over
        what is served.
        """
        running, waiting = self._stats.num_running_reqs, self._stats.num_waiting_reqs
        by_queue = (running + waiting) / max(running, 1) if waiting else 0.0
        return max(by_queue, self._stats.kv_cache_usage / KV_FULL)
