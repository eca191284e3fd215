"""Every metric that Podium measures: name, unit, labels, buckets. One table, beside the names of spans
in `spans.py`.

Names are those of the OpenTelemetry GenAI conventions where they have one (`docs/gen-ai/gen-ai-metrics.md`
of https://github.com/open-telemetry/semantic-conventions-genai, development status as of 2026-11, buckets
included), ours start with `podium.`. A label holds a name from the settings or a word of a closed set,
a team's id, and never a caller's words, so there are no more series than workers times models times kinds of
errors. However many names there are, an instrument has at most `MOST_SERIES`.

Ray's agent rebuilds histograms from bucket counts, so their `_sum` is a guess: what must add up (tokens,
money) is a counter.
"""

from dataclasses import dataclass
from typing import Literal

from serving.health import WINDOW
from serving.telemetry import spans

MOST_SERIES = 500
"""Of an instrument, in a process; labels that come later are `OTHER`. A histogram's series has a line for each bucket."""
OTHER = "other"
SUFFIXES = {"s": "_seconds", "USD": "_usd"}
SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
LONG_SECONDS = (*SECONDS[3:], 163.84, 327.68, 655.36)
"""For whole runs, which take up to ten minutes by default."""
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
COUNTS = (1, 2, 3, 4, 5, 8, 13, 20)

Kind = Literal["counter", "histogram", "gauge"]


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric. Units are UCUM's, as the conventions write them."""

    kind: Kind
    name: str
    unit: str
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """As it is given to Ray, which puts `ray_` before it, and `_total` behind a counter."""
        return to_prometheus(self.name) + SUFFIXES.get(self.unit, "")


def to_prometheus(name: str) -> str:
    """`name` as Prometheus spells it."""
    return name.replace(".", "_")


CALL = (spans.OPERATION, spans.PROVIDER, spans.WORKER)

WORKFLOW_DURATION = Instrument(
    "histogram",
    "gen_ai.workflow.duration",
    "s",
    "A whole run, from the request to its end.",
    (spans.WORKFLOW, spans.STATUS, spans.ERROR_TYPE),
    LONG_SECONDS,
)
CALL_DURATION = Instrument(
    "histogram",
    "gen_ai.client.operation.duration",
    "s",
    "A call to a model: waiting for budget, a slot or a retry included.",
    (*CALL, spans.ERROR_TYPE),
    SECONDS,
)
CALL_FIRST_CHUNK = Instrument(
    "histogram",
    "gen_ai.client.operation.time_to_first_chunk",
    "s",
    "Until a called model said something.",
    CALL,
    SECONDS,
)
CALL_TOKENS = Instrument(
    "histogram",
    "gen_ai.client.token.usage",
    "{token}",
    "How long prompts and answers are.",
    (*CALL, spans.TOKEN_TYPE),
    TOKENS,
)

FIRST_ANSWER = Instrument(
    "histogram",
    "podium.workflow.time_to_first_chunk",
    "s",
    "Until the answer's first piece.",
    (spans.WORKFLOW,),
    LONG_SECONDS,
)
OVER_CRITICAL_PATH = Instrument(
    "histogram",
    "podium.workflow.wall_over_critical_path",
    "1",
    "How much longer than its longest chain of steps a run took: what orchestration adds.",
    (spans.WORKFLOW,),
    (1, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 5),
)
COST = Instrument("counter", "podium.workflow.cost", "USD", "Dollars spent.", (spans.WORKFLOW,))
TEAM_COST = Instrument(
    "counter",
    "podium.team.cost",
    "USD",
    "Dollars spent, by the id of the team of the key that asked; `none`: no team, or no key.",
    (spans.TEAM,),
)
COST_UNKNOWN = Instrument(
    "counter",
    "podium.workflow.cost_unknown",
    "{run}",
    "Runs with a call whose cost nobody knows.",
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
    "Plan texts, by who wrote them, what became of them, and why they were refused.",
    (spans.SOURCE, spans.STATUS, spans.REASON),
)
PLAN_STEPS = Instrument(
    "histogram", "podium.plan.steps", "{step}", "Steps of the plan that answered.", (spans.WORKFLOW,), COUNTS
)
PLAN_DEPTH = Instrument(
    "histogram", "podium.plan.depth", "{step}", "Its longest chain of reads.", (spans.WORKFLOW,), COUNTS
)
STEPS = Instrument(
    "counter",
    "podium.steps",
    "{step}",
    "Steps, by how they ended; one that reuses an earlier result is not counted again.",
    (spans.WORKER, spans.STATUS),
)
WORKER_TOKENS = Instrument(
    "counter",
    "podium.worker.tokens",
    "{token}",
    "Tokens, exactly; `cached_input` is a part of `input`, `reasoning` one of `output`.",
    (spans.OPERATION, spans.WORKER, spans.TOKEN_TYPE),
)
WORKER_ERRORS = Instrument(
    "counter",
    "podium.worker.errors",
    "{error}",
    "Attempts that failed, by what was done then: retried, failed_over, gave_up.",
    (spans.WORKER, spans.ERROR_TYPE, spans.THEN),
)
HEDGES = Instrument(
    "counter",
    "podium.worker.hedges",
    "{call}",
    "Second calls, made because the first was late, by whether they were sooner: won, lost.",
    (spans.WORKER, spans.THEN),
)

RUNNING = Instrument("gauge", "podium.workflow.running", "{run}", "Runs under way in a router replica.")
ROOM = Instrument("gauge", "podium.workflow.room", "{run}", "Most runs that a router replica takes.")
CONDUCTOR_FAILURES = Instrument(
    "gauge",
    "podium.conductor.failures_in_a_row",
    "{run}",
    "Newest runs of a router replica for which the conductor made no plan; 0 once it makes one.",
)
QUEUED = Instrument(
    "gauge",
    "podium.worker.queued",
    "{call}",
    "Calls that wait for one of the worker's slots.",
    (spans.WORKER,),
)
SLOTS = Instrument(
    "gauge",
    "podium.worker.slots",
    "{call}",
    "Calls that may be open at once at a router replica: `max_concurrency`, or fewer where the worker can take no more.",
    (spans.WORKER,),
)
OPEN = Instrument("gauge", "podium.worker.open", "{call}", "Calls that hold one.", (spans.WORKER,))
WORKER_FAILURES = Instrument(
    "gauge",
    "podium.worker.failures_in_a_row",
    "{call}",
    "Newest calls of a router replica that the worker failed; 0 once one succeeds.",
    (spans.WORKER,),
)
WORKER_FAILURE_SHARE = Instrument(
    "gauge",
    "podium.worker.failure_share",
    "1",
    f"Share of a router replica's newest {WINDOW} calls that the worker failed, each attempt counted.",
    (spans.WORKER,),
)
WORKER_CIRCUIT = Instrument(
    "gauge",
    "podium.worker.circuit",
    "1",
    "Of a router replica, also on the word of others: 0 closed; 1 open, the worker is left alone where another can be asked; 0.5 half-open.",
    (spans.WORKER,),
)
WORKER_FIRST_TOKEN = Instrument(
    "gauge",
    "podium.worker.first_token",
    "s",
    f"Until the first token of a router replica's newest {WINDOW} calls, waits for a slot left out.",
    (spans.WORKER, spans.QUANTILE),
)

INSTRUMENTS = tuple(value for value in globals().values() if isinstance(value, Instrument))
