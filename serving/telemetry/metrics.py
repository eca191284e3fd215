"""Table of all metrics that Podium measures: name, unit, labels and buckets. Spans are in `spans.py`.

Names and buckets follow the OpenTelemetry GenAI conventions where these define the metric
(`gen-ai-metrics.md` of https://github.com/open-telemetry/semantic-conventions-genai, development status as of
2026-11). Podium's own names start with `podium.`.

The value of a label is a name from the settings, a word of a closed set, or the id of a team. It is never a
text from a client, so the number of series is at most about workers times models times kinds of errors. In
addition, each instrument is limited to `MOST_SERIES`.

Ray's agent rebuilds histograms from bucket counts, so the `_sum` of a histogram is only an estimate. Values
that must add up exactly (tokens, money) are counters.
"""

from dataclasses import dataclass
from typing import Literal

from serving.health import WINDOW
from serving.telemetry import spans

MOST_SERIES = 500
"""Maximum number of series of an instrument in one process. Further label values are replaced by `OTHER`. In
Prometheus, each series of a histogram has one line per bucket."""
OTHER = "other"
SUFFIXES = {"s": "_seconds", "USD": "_usd"}
SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
LONG_SECONDS = (*SECONDS[3:], 163.84, 327.68, 655.36)
"""Buckets for whole runs, which take up to ten minutes by default."""
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
COUNTS = (1, 2, 3, 4, 5, 8, 13, 20)

Kind = Literal["counter", "histogram", "gauge"]


@dataclass(frozen=True, slots=True)
class Instrument:
    """Metric, with its unit in UCUM as in the OpenTelemetry conventions."""

    kind: Kind
    name: str
    unit: str
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """Name to pass to Ray. Ray adds the prefix `ray_` and, for a counter, the suffix `_total`."""
        return to_prometheus(self.name) + SUFFIXES.get(self.unit, "")


def to_prometheus(name: str) -> str:
    """Convert the name of a metric or label to one that Prometheus allows."""
    return name.replace(".", "_")


CALL = (spans.OPERATION, spans.PROVIDER, spans.WORKER)

WORKFLOW_DURATION = Instrument(
    "histogram",
    "gen_ai.workflow.duration",
    "s",
    "Duration of a run, from its request to its end.",
    (spans.WORKFLOW, spans.STATUS, spans.ERROR_TYPE),
    LONG_SECONDS,
)
CALL_DURATION = Instrument(
    "histogram",
    "gen_ai.client.operation.duration",
    "s",
    "Duration of a call to a model, including waits for budget, slots and retries.",
    (*CALL, spans.ERROR_TYPE),
    SECONDS,
)
CALL_FIRST_CHUNK = Instrument(
    "histogram",
    "gen_ai.client.operation.time_to_first_chunk",
    "s",
    "Time to the first chunk of a call to a model.",
    CALL,
    SECONDS,
)
CALL_TOKENS = Instrument(
    "histogram",
    "gen_ai.client.token.usage",
    "{token}",
    "Number of tokens in the prompt and in the answer of a call to a model.",
    (*CALL, spans.TOKEN_TYPE),
    TOKENS,
)

FIRST_ANSWER = Instrument(
    "histogram",
    "podium.workflow.time_to_first_chunk",
    "s",
    "Time to the first chunk of the answer.",
    (spans.WORKFLOW,),
    LONG_SECONDS,
)
OVER_CRITICAL_PATH = Instrument(
    "histogram",
    "podium.workflow.wall_over_critical_path",
    "1",
    "Duration of a run divided by that of its longest chain of steps, which shows the overhead of orchestration.",
    (spans.WORKFLOW,),
    (1, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 5),
)
COST = Instrument("counter", "podium.workflow.cost", "USD", "Cost of runs in US dollars.", (spans.WORKFLOW,))
TEAM_COST = Instrument(
    "counter",
    "podium.team.cost",
    "USD",
    "Cost of runs in US dollars, by the id of the key's team, or `none` without a team or key.",
    (spans.TEAM,),
)
COST_UNKNOWN = Instrument(
    "counter",
    "podium.workflow.cost_unknown",
    "{run}",
    "Number of runs with a call of unknown cost.",
    (spans.WORKFLOW,),
)
BUDGET_USED = Instrument(
    "histogram",
    "podium.workflow.budget_used",
    "1",
    "Share of `max_cost_usd` that a run spent.",
    (spans.WORKFLOW,),
    (0.1, 0.25, 0.5, 0.75, 0.9, 1),
)
PLANS = Instrument(
    "counter",
    "podium.plans",
    "{plan}",
    "Number of plans, by source, status and reason for rejection.",
    (spans.SOURCE, spans.STATUS, spans.REASON),
)
PLAN_STEPS = Instrument(
    "histogram",
    "podium.plan.steps",
    "{step}",
    "Number of steps in the plan that produced the answer.",
    (spans.WORKFLOW,),
    COUNTS,
)
PLAN_DEPTH = Instrument(
    "histogram",
    "podium.plan.depth",
    "{step}",
    "Length of the longest chain of dependent steps in the plan that produced the answer.",
    (spans.WORKFLOW,),
    COUNTS,
)
STEPS = Instrument(
    "counter",
    "podium.steps",
    "{step}",
    "Number of steps, by worker and status. A step that reuses an earlier result is not counted again.",
    (spans.WORKER, spans.STATUS),
)
WORKER_TOKENS = Instrument(
    "counter",
    "podium.worker.tokens",
    "{token}",
    "Exact number of tokens. `cached_input` is a part of `input`, and `reasoning` is a part of `output`.",
    (spans.OPERATION, spans.WORKER, spans.TOKEN_TYPE),
)
WORKER_ERRORS = Instrument(
    "counter",
    "podium.worker.errors",
    "{error}",
    "Number of failed attempts, by worker, error and what followed: retried, failed_over or gave_up.",
    (spans.WORKER, spans.ERROR_TYPE, spans.THEN),
)
HEDGES = Instrument(
    "counter",
    "podium.worker.hedges",
    "{call}",
    "Number of hedges, by result: won or lost. A hedge is a second call, sent because the first token of the first call is late.",
    (spans.WORKER, spans.THEN),
)

RUNNING = Instrument(
    "gauge", "podium.workflow.running", "{run}", "Number of runs in progress in a router replica."
)
ROOM = Instrument(
    "gauge", "podium.workflow.room", "{run}", "Maximum number of concurrent runs in a router replica."
)
CONDUCTOR_FAILURES = Instrument(
    "gauge",
    "podium.conductor.failures_in_a_row",
    "{run}",
    "Number of consecutive runs of a router replica for which the conductor wrote no plan.",
)
QUEUED = Instrument(
    "gauge",
    "podium.worker.queued",
    "{call}",
    "Number of calls that wait for a slot of the worker.",
    (spans.WORKER,),
)
SLOTS = Instrument(
    "gauge",
    "podium.worker.slots",
    "{call}",
    "Maximum number of concurrent calls from a router replica: `max_concurrency`, or less if the worker is overloaded.",
    (spans.WORKER,),
)
OPEN = Instrument(
    "gauge",
    "podium.worker.open",
    "{call}",
    "Number of calls that hold a slot of the worker.",
    (spans.WORKER,),
)
WORKER_FAILURES = Instrument(
    "gauge",
    "podium.worker.failures_in_a_row",
    "{call}",
    "Number of consecutive calls of a router replica that failed because of the worker.",
    (spans.WORKER,),
)
WORKER_FAILURE_SHARE = Instrument(
    "gauge",
    "podium.worker.failure_share",
    "1",
    f"Share of failures among the last {WINDOW} calls of a router replica to the worker. Each attempt counts as a call.",
    (spans.WORKER,),
)
WORKER_CIRCUIT = Instrument(
    "gauge",
    "podium.worker.circuit",
    "1",
    "Circuit breaker of the worker, shared between router replicas: 0 is closed, 0.5 is half-open, and 1 is open. A worker with an open circuit is skipped if another worker can answer.",
    (spans.WORKER,),
)
WORKER_FIRST_TOKEN = Instrument(
    "gauge",
    "podium.worker.first_token",
    "s",
    f"Quantiles of the time to the first token in the last {WINDOW} calls of a router replica, without waits for slots.",
    (spans.WORKER, spans.QUANTILE),
)

INSTRUMENTS = tuple(value for value in globals().values() if isinstance(value, Instrument))
