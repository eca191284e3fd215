"""What is measured, what is promised, and how repeats become a figure. Knows numbers only.

Noise: the repeats are dealt out to `BLOCKS` hands in turn, and the figure is computed again from each hand; the lowest and
the highest of these say how far the figure would move if the run were a fifth as long.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

BLOCKS = 5


@dataclass(frozen=True, slots=True)
class Known:
    """A figure that a run may give.

    Args:
        meaning: a short line.
        target: what it may be at most, or must be at least; None: no promise.
        side: which of the two.
    """

    meaning: str
    target: float | None = None
    side: Literal["at most", "at least"] = "at most"

    def met(self, value: float) -> bool | None:
        """Whether `value` keeps the promise; None where there is none."""
        if self.target is None:
            return None
        return value <= self.target if self.side == "at most" else value >= self.target


CATALOGUE: dict[str, Known] = {
    "dag_wall_over_critical_path": Known("three steps side by side and one that reads them; the record", 1.05),
    "dag_client_wall_over_critical_path": Known("the same, by the client's clock: HTTP included"),
    "dag_speedup_over_sequential": Known("the same four steps, each reading the one before", 1.9, "at least"),
    "wall_over_sequential_p50": Known("plan by plan: ours over the paper's sequence, whole wall", 0.85),
    "wall_over_sequential_p95": Known("the same; 1 where there is one step", 1.05),
    "wall_over_plan_then_run_p50": Known("plan by plan: ours over the same DAG begun at the plan's end", 0.95),
    "wall_over_plan_then_run_p95": Known("the same", 1.05),
    "wall_podium_p50_s": Known("of those plans"),
    "wall_plan_then_run_p50_s": Known("of those plans"),
    "wall_sequential_p50_s": Known("of those plans"),
    "first_call_after_step_ms": Known("p95, step's last byte parsed to worker called; the record", 30),
    "first_call_after_scheduled_byte_ms": Known("p95, the same from when that byte was due at 50 tokens/s"),
    "first_call_saved_ms": Known("first worker called before the plan's end"),
    "answer_token_added_p50_ms": Known("first token's way, from the worker's server to the client", 15),
    "answer_token_added_p95_ms": Known("the same"),
    "round_trip_added_p50_ms": Known("request sent to first token, less the worker's own delay"),
    "round_trip_added_p95_ms": Known("the same"),
    "bare_serve_p50_ms": Known("for comparison: request to answer of the bare ingress, one at a time"),
    "passthrough_over_bare_serve": Known("requests/s at 32 clients, over an ingress that answers a constant",
                                         0.5, "at least"),
    "passthrough_rps": Known("requests/s of pass-through"),
    "bare_serve_rps": Known("requests/s of the bare ingress"),
    "passthrough_rps_over_litellm": Known("requests/s at 32 clients, over LiteLLM's proxy", 2, "at least"),
    "added_p50_over_litellm": Known("p50 less the upstream's, 1 client, over LiteLLM's", 0.5),
    "streams_over_litellm": Known("whole streams/s at 16 clients, over LiteLLM's", 4, "at least"),
    "podium_rps": Known("of those; behind HAProxy"),
    "litellm_rps": Known("of those"),
    "podium_added_p50_ms": Known("of those"),
    "litellm_added_p50_ms": Known("of those"),
    "podium_streams_per_s": Known("of those"),
    "litellm_streams_per_s": Known("of those"),
    "upstream_rps": Known("of those: the upstream, asked without a proxy"),
    "added_per_step_1_ms": Known("a workflow of one instant step, p50 less the bare ingress's; behind HAProxy"),
    "added_per_step_3_ms": Known("three instant steps in a row, each"),
    "open_streams_lost": Known("of 1,000 streams, those without their whole text and [DONE]", 0),
    "open_streams_peak": Known("runs under way at once, by the router's own count", 1000, "at least"),
    "router_mb_per_open_stream": Known("the router replica's resident memory"),
    "disconnect_to_closed_p95_ms": Known("client hung up to last upstream connection closed", 250),
    "disconnect_to_closed_p50_ms": Known("the same"),
    "disconnect_planning_p95_ms": Known("of those, while the conductor writes"),
    "disconnect_inner_p95_ms": Known("of those, while inner steps run"),
    "disconnect_answer_p95_ms": Known("of those, while the answer streams"),
    "disconnects": Known("how many left with a call open", 60, "at least"),
    "disconnect_calls_left": Known("upstream calls still open 5 s later, or runs still under way", 0),
    "vllm_ttft_added_ms": Known("p50 first token through the router less that of vLLM alone, one at a time", 20),
    "vllm_tokens_over_bare_1": Known("tokens/s through the router over vLLM alone, 1 at once, one engine", 0.9, "at least"),
    "vllm_tokens_per_s_1": Known("of those, through the router"),
    "vllm_bare_tokens_per_s_1": Known("of those, vLLM alone"),
    "vllm_ttft_ms_1": Known("first token through the router, 1 at once"),
    "vllm_bare_ttft_ms_1": Known("the same, vLLM alone"),
    "vllm_tokens_over_bare_8": Known("tokens/s through the router over vLLM alone, 8 at once, one engine", 0.9, "at least"),
    "vllm_tokens_per_s_8": Known("of those, through the router"),
    "vllm_bare_tokens_per_s_8": Known("of those, vLLM alone"),
    "vllm_ttft_ms_8": Known("first token through the router, 8 at once"),
    "vllm_bare_ttft_ms_8": Known("the same, vLLM alone"),
    "vllm_tokens_over_bare_32": Known("tokens/s through the router over vLLM alone, 32 at once, one engine", 0.9, "at least"),
    "vllm_tokens_per_s_32": Known("of those, through the router"),
    "vllm_bare_tokens_per_s_32": Known("of those, vLLM alone"),
    "vllm_ttft_ms_32": Known("first token through the router, 32 at once"),
    "vllm_bare_ttft_ms_32": Known("the same, vLLM alone"),
    "replicas_rps_1": Known("requests/s of pass-through, 32 clients, 1 router replica, HAProxy"),
    "router_cpu_ms_per_request_1": Known("CPU time of those replicas for a request"),
    "replicas_rps_2": Known("requests/s of pass-through, 32 clients, 2 router replicas, HAProxy"),
    "router_cpu_ms_per_request_2": Known("CPU time of those replicas for a request"),
    "replicas_rps_4": Known("requests/s of pass-through, 32 clients, 4 router replicas, HAProxy"),
    "router_cpu_ms_per_request_4": Known("CPU time of those replicas for a request"),
    "autoscaling_lost": Known("streams that were not whole while replicas came and went", 0),
    "autoscaling_streams": Known("how many there were", 40, "at least"),
    "autoscaling_replicas_peak": Known("replicas of the stand-in at once, from none", 3, "at least"),
    "autoscaling_cold_start_s": Known("first request's first token, where no replica was up"),
    "autoscaling_up_s": Known("from one stream becoming eight to the second replica being up"),
    "autoscaling_to_zero_s": Known("from the last stream's end to the last replica's"),
    "two_engines_up_s": Known("from load to a second vLLM engine being up"),
    "two_engines_lost": Known("streams that were not whole meanwhile", 0),
    "two_engines_streams": Known("how many there were"),
    "two_engines_lesser_share": Known("of the two engines' CPU time, the less busy one's", 0.25, "at least"),
    "adapters_lost": Known("streams that were not whole while the adapter was switched under load", 0),
    "adapters_wrong": Known("answers of the wrong adapter, or of two", 0),
    "adapters_answers": Known("how many there were", 50, "at least"),
    "adapters_switch_s": Known("config deployed again to the new adapter in every replica and in use; two engines"),
    "adapters_first_word_quiet_ms": Known("p50 first word of requests that met no switch"),
    "adapters_first_word_switching_ms": Known("the same of those that met one"),
}  # fmt: skip
"""Every name in `build/bench.json`."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value and how far it moved within the run; equal bounds: it was counted once."""

    name: str
    value: float
    low: float
    high: float

    @property
    def known(self) -> Known:
        """Its meaning and its promise."""
        return CATALOGUE[self.name]

    @property
    def met(self) -> bool | None:
        """Whether the promise is kept; None where there is none."""
        return self.known.met(self.value)


def figure(name: str, samples: Sequence[float], of: Callable[[Sequence[float]], float] = median) -> Figure:
    """The statistic `of` the samples, with its noise.

    Raises:
        ValueError: nothing was measured.
    """
    if not samples:
        raise ValueError(f"{name}: nothing was measured")
    hands = [of(hand) for start in range(BLOCKS) if (hand := samples[start::BLOCKS])]
    return Figure(name, of(samples), min(hands), max(hands))


def counted(name: str, value: float) -> Figure:
    """A figure that one look gave."""
    return Figure(name, value, value, value)


def p95(samples: Sequence[float]) -> float:
    """The nearest-rank 95th percentile: at least 95 % of the samples are no higher."""
    ordered = sorted(samples)
    return ordered[max(0, -(-95 * len(ordered) // 100) - 1)]


def flat(figures: Iterable[Figure]) -> dict[str, float]:
    """What is written to `build/bench.json`.

    Raises:
        ValueError: a name is not in the catalogue, or came twice.
    """
    written: dict[str, float] = {}
    for each in figures:
        if each.name not in CATALOGUE or each.name in written:
            raise ValueError(f"{each.name!r} is no name of the catalogue, or came twice")
        written[each.name] = round(each.value, 4)
    return written
