"""Catalogue of the bench's figures with their targets, and the statistics of repeated measurements.

The range of a figure shows its noise. The samples are dealt in turn to `BLOCKS` groups, and the figure is
computed from each group. The lowest and the highest result show how far the figure would move in a run a
fifth as long.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from loadtest import percentile

BLOCKS = 5


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """Entry of the catalogue. `side` says whether the target is an upper or a lower bound."""

    meaning: str
    target: float | None = None
    side: Literal["at most", "at least"] = "at most"

    def meets_target(self, value: float) -> bool | None:
        if self.target is None:
            return None
        return value <= self.target if self.side == "at most" else value >= self.target


def at_most(target: float, meaning: str) -> FigureSpec:
    """Return the spec of a figure with an upper bound."""
    return FigureSpec(meaning, target)


def at_least(target: float, meaning: str) -> FigureSpec:
    """Return the spec of a figure with a lower bound."""
    return FigureSpec(meaning, target, "at least")


def _vllm_figures(count: int) -> dict[str, FigureSpec]:
    return {
        f"vllm_tokens_over_bare_{count}": at_least(
            0.9, f"tokens/s through the router, divided by vLLM alone, {count} concurrent"
        ),
        f"vllm_tokens_per_s_{count}": FigureSpec(f"tokens/s through the router, {count} concurrent"),
        f"vllm_bare_tokens_per_s_{count}": FigureSpec(f"tokens/s of vLLM alone, {count} concurrent"),
        f"vllm_ttft_ms_{count}": FigureSpec(f"time to first token through the router, {count} concurrent"),
        f"vllm_bare_ttft_ms_{count}": FigureSpec(f"time to first token of vLLM alone, {count} concurrent"),
    }


def _proxy_figures(name: str, what: str) -> dict[str, FigureSpec]:
    return {
        f"{name}_rps": FigureSpec(f"requests/s of {what}"),
        f"{name}_added_p50_ms": FigureSpec(f"latency that {what} adds: p50 minus that of the upstream alone"),
        f"{name}_added_first_token_ms": FigureSpec(f"time that {what} adds to a stream's first token"),
        f"{name}_streams_per_s": FigureSpec(f"complete streams/s of {what}"),
        f"{name}_cpu_ms_per_request": FigureSpec(
            f"CPU time of {name} per answer, without HAProxy, 32 clients"
        ),
        f"{name}_cpu_us_per_chunk": FigureSpec(
            f"CPU time of {name} per streamed chunk, without HAProxy, 16 clients"
        ),
    }


def _metering_figures(store: str) -> dict[str, FigureSpec]:
    what = f"a key, a budget, a price and the record in {store}"
    return {
        f"metering_added_p50_ms_{store}": at_most(2, f"latency added by {what}: p50, 1 client"),
        f"metering_added_p99_ms_{store}": FigureSpec(f"latency added by {what}: p99, 1 client"),
        f"metering_rps_over_plain_{store}": at_least(
            0.8, f"requests/s with {what}, divided by those without, 32 clients"
        ),
    }


def _tool_figures(router: str, where: str) -> dict[str, FigureSpec]:
    return {
        f"tool_turn_p50_ms_{router}": FigureSpec(
            f"Podium's own time in a tool's round trip: p50, 1 client, runs stored {where}"
        ),
        f"tool_turn_p99_ms_{router}": FigureSpec(
            f"Podium's own time in a tool's round trip: p99, 1 client, runs stored {where}"
        ),
        f"tool_turn_over_request_{router}": FigureSpec(
            f"Podium's own time in a tool's round trip, divided by a request without tools, runs stored {where}"
        ),
    }


CATALOGUE: dict[str, FigureSpec] = {
    "dag_wall_over_critical_path": at_most(
        1.05,
        "wall time divided by critical path, three parallel steps and one that reads them, from the record",
    ),
    "dag_client_wall_over_critical_path": FigureSpec(
        "wall time divided by critical path, same plan, by the client's clock, HTTP included"
    ),
    "dag_speedup_over_sequential": at_least(1.9, "speedup over the same steps in sequence"),
    "wall_over_sequential_p50": at_most(
        0.85, "wall time divided by the paper's sequential execution, p50 over plans"
    ),
    "wall_over_sequential_p95": at_most(
        1.05,
        "wall time divided by the paper's sequential execution, p95 over plans (1 for plans of one step)",
    ),
    "wall_over_plan_then_run_p50": at_most(
        0.95, "wall time divided by that of steps started at the plan's end, p50 over plans"
    ),
    "wall_over_plan_then_run_p95": at_most(
        1.05, "wall time divided by that of steps started at the plan's end, p95 over plans"
    ),
    "wall_podium_p50_s": FigureSpec("wall time of the compared plans, p50"),
    "wall_plan_then_run_p50_s": FigureSpec(
        "wall time of the compared plans if steps start at the plan's end, p50"
    ),
    "wall_sequential_p50_s": FigureSpec("wall time of the compared plans if steps run in sequence, p50"),
    "first_call_after_step_ms": at_most(
        30, "from a step's last byte parsed to the call of its worker, p95, from the record"
    ),
    "first_call_after_scheduled_byte_ms": FigureSpec(
        "from when a step's last byte was due at 50 tokens/s to the call of its worker, p95"
    ),
    "first_call_saved_ms": FigureSpec("from the first call of a worker to the end of the plan"),
    "answer_token_added_p50_ms": at_most(
        15, "first token, from the upstream's write to the client's read, p50"
    ),
    "answer_token_added_p95_ms": FigureSpec(
        "first token, from the upstream's write to the client's read, p95"
    ),
    "round_trip_added_p50_ms": FigureSpec("request to first token, minus the scripted worker's delay, p50"),
    "round_trip_added_p95_ms": FigureSpec("request to first token, minus the scripted worker's delay, p95"),
    "bare_serve_p50_ms": FigureSpec("round trip of the baseline ingress, 1 client, p50"),
    "passthrough_over_bare_serve": at_least(
        0.5, "pass-through requests/s, divided by the baseline ingress, 32 clients"
    ),
    "passthrough_rps": FigureSpec("pass-through requests/s, 32 clients"),
    "bare_serve_rps": FigureSpec("requests/s of the baseline ingress, 32 clients"),
    "passthrough_rps_over_litellm": at_least(2, "requests/s, divided by LiteLLM, 32 clients"),
    "added_p50_over_litellm": at_most(0.5, "added latency, divided by LiteLLM, 1 client"),
    "added_first_token_over_litellm": FigureSpec(
        "time added to a stream's first token, divided by LiteLLM, 1 client"
    ),
    "streams_over_litellm": at_least(4, "complete streams/s, divided by LiteLLM, 16 clients"),
    **_proxy_figures("podium", "Podium, behind HAProxy"),
    **_proxy_figures("litellm", "LiteLLM"),
    "upstream_rps": FigureSpec("requests/s of the upstream without a proxy"),
    "metered_rps_over_ingress": at_least(
        0.6,
        "requests/s with store, key, budget and price, divided by an empty ingress of Ray Serve, 32 clients",
    ),
    "passthrough_rps_over_smg": FigureSpec(
        "requests/s with store, key, budget and price, divided by smg, which has none of these and no orchestration"
    ),
    "ingress_rps_over_smg": FigureSpec(
        "requests/s of the empty ingress, divided by smg: the limit that Ray Serve imposes"
    ),
    "added_p50_over_smg": FigureSpec("added latency, divided by smg, 1 client"),
    "added_first_token_over_smg": FigureSpec(
        "time added to a stream's first token, divided by smg, 1 client"
    ),
    "streams_over_smg": at_least(0.5, "complete streams/s, divided by smg, 16 clients"),
    **_proxy_figures("metered", "Podium with store, key, budget and price, behind HAProxy"),
    **_proxy_figures("smg", "smg"),
    "ingress_rps": FigureSpec("requests/s of the empty ingress, behind HAProxy"),
    "ingress_added_p50_ms": FigureSpec("added latency of the empty ingress, 1 client"),
    "smg_upstream_rps": FigureSpec("requests/s of the upstream without a proxy, measured together with smg"),
    "added_per_step_1_ms": FigureSpec(
        "latency that a workflow of one step adds to the baseline ingress, p50, behind HAProxy"
    ),
    "added_per_step_3_ms": FigureSpec(
        "latency that each of three sequential steps adds, p50, behind HAProxy"
    ),
    "open_streams_lost": at_most(0, "incomplete streams of 1,000 concurrent ones"),
    "open_streams_peak": at_least(1000, "concurrent runs, counted by the router"),
    "router_mb_per_open_stream": FigureSpec("resident memory of the router replica per concurrent stream"),
    "slow_readers": at_least(500, "concurrent streams whose clients read nothing, behind HAProxy"),
    "slow_reader_router_mb": at_most(2, "resident memory of the router per stream that is not read"),
    "slow_reader_haproxy_mb": at_most(0.5, "resident memory of HAProxy per stream that is not read"),
    "slow_reader_kernel_mb": FigureSpec(
        "socket buffers per stream that is not read, including the upstream's"
    ),
    "slow_readers_left": at_most(0, "streams that are not read and that the router did not close"),
    "disconnect_to_closed_p95_ms": at_most(
        250, "from client disconnect to last upstream connection closed, p95"
    ),
    "disconnect_to_closed_p50_ms": FigureSpec(
        "from client disconnect to last upstream connection closed, p50"
    ),
    "disconnect_planning_p95_ms": FigureSpec(
        "from client disconnect to last upstream connection closed, while the conductor writes, p95"
    ),
    "disconnect_inner_p95_ms": FigureSpec(
        "from client disconnect to last upstream connection closed, while inner steps run, p95"
    ),
    "disconnect_answer_p95_ms": FigureSpec(
        "from client disconnect to last upstream connection closed, while the answer streams, p95"
    ),
    "disconnects": at_least(60, "clients that disconnected during an upstream call"),
    "disconnect_calls_left": at_most(
        0, "upstream calls still open 5 s after the disconnect, or runs still active"
    ),
    "vllm_ttft_added_ms": at_most(
        20, "time that the router adds to vLLM's first token, difference of p50s, 1 request"
    ),
    "vllm_ingress_ttft_added_ms": FigureSpec(
        "time that an empty ingress adds to vLLM's first token, difference of p50s, 1 request"
    ),
    "vllm_ttft_over_ingress": at_most(
        1.3, "time to first token through the router, divided by that through an empty ingress"
    ),
    **_vllm_figures(1),
    **_vllm_figures(8),
    **_vllm_figures(32),
    **_metering_figures("sqlite"),
    **_metering_figures("postgresql"),
    **_tool_figures("plain", "in memory"),
    **_tool_figures("sqlite", "in SQLite"),
    **_tool_figures("postgresql", "in PostgreSQL"),
    "watching_cpu_ms_per_s_0": FigureSpec("the router's CPU time per second of a run without watchers"),
    "watching_cpu_ms_per_s_1": FigureSpec("the router's CPU time per second of a run with one watcher"),
    "watching_cpu_ms_per_s_10": FigureSpec("the router's CPU time per second of a run with ten watchers"),
    "watching_first_token_added_ms": FigureSpec(
        "time that ten watchers add to the first token of the answer"
    ),
    "metering_plain_rps": FigureSpec(
        "requests/s of a router without key, budget, price and record, 32 clients, without Ray"
    ),
    "autoscaling_lost": at_most(0, "incomplete streams while replicas scaled up and down"),
    "autoscaling_streams": at_least(40, "streams while replicas scaled up and down"),
    "autoscaling_replicas_peak": at_least(3, "concurrent replicas of the fake engine, from zero"),
    "autoscaling_cold_start_s": FigureSpec(
        "time to first token of the first request, starting from zero replicas"
    ),
    "autoscaling_up_s": FigureSpec(
        "from an increase from one to eight streams until the second replica is up"
    ),
    "autoscaling_to_zero_s": FigureSpec("from the end of the last stream to the end of the last replica"),
    "two_engines_up_s": FigureSpec("from the start of load until a second vLLM engine is up"),
    "two_engines_lost": at_most(0, "incomplete streams while the second vLLM engine starts"),
    "two_engines_streams": FigureSpec("streams while the second vLLM engine starts"),
    "two_engines_lesser_share": at_least(0.25, "the less busy engine's share of the engines' CPU time"),
    "adapters_lost": at_most(0, "incomplete streams while the adapter was switched under load"),
    "adapters_wrong": at_most(0, "answers of a wrong adapter, or of two adapters"),
    "adapters_answers": at_least(50, "answers while the adapter was switched under load"),
    "adapters_switch_s": FigureSpec(
        "from deploying the config until every replica of two engines uses the next adapter"
    ),
    "adapters_first_word_quiet_ms": FigureSpec("time to first token outside a switch of the adapter, p50"),
    "adapters_first_word_switching_ms": FigureSpec("time to first token during a switch of the adapter, p50"),
}
"""Every figure of build/bench.json, by name."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Measured value and its range within the run. If both bounds are equal, there was only one reading."""

    name: str
    value: float
    low: float
    high: float

    @property
    def spec(self) -> FigureSpec:
        return CATALOGUE[self.name]

    @property
    def meets_target(self) -> bool | None:
        return self.spec.meets_target(self.value)


def figure(name: str, samples: Sequence[float], of: Callable[[Sequence[float]], float] = median) -> Figure:
    """Return the statistic `of` the samples, with its range."""
    if not samples:
        raise ValueError(f"no samples were measured for {name}")
    groups = [of(group) for start in range(BLOCKS) if (group := samples[start::BLOCKS])]
    return Figure(name, of(samples), min(groups), max(groups))


def reading(name: str, value: float) -> Figure:
    return Figure(name, value, value, value)


def p95(samples: Sequence[float]) -> float:
    return percentile(samples, 95)


def to_json(figures: Iterable[Figure]) -> dict[str, float]:
    """Return the content of build/bench.json. Raise ValueError for an unknown or repeated name."""
    content: dict[str, float] = {}
    for each in figures:
        if each.name not in CATALOGUE or each.name in content:
            raise ValueError(f"{each.name!r} is not in the catalogue of figures, or appears twice")
        content[each.name] = round(each.value, 4)
    return content
