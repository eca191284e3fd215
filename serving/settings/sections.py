"""The sections of a settings file, beside its workers. A field's docstring is its meaning in
docs/settings.md.
"""

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator

from conductor.plan.grammars import SUBTASK_CHARS
from conductor.plan.plan import OnFailure
from conductor.run.plan_writer import PLAN_TIMEOUT_S, PLAN_TOKENS
from serving.settings.access import Effort, Frozen, check_variable
from serving.settings.scale import Scaling


class ConductorSettings(Frozen):
    """Who writes the plans, and how it is asked."""

    worker: str
    """Its name; where its key is not set, the first of its `fallbacks` that is there."""
    format: Literal["steps", "lists"] = "steps"
    """How it writes plans: `steps`, one JSON object per step, which can start running while the plan is
    written; `lists`, the three lists of the paper."""
    temperature: float | None = Field(default=0.0, ge=0, le=2)
    """Sampling temperature of its plans. null: the model's own default."""
    constrained: bool = True
    """Constrain decoding to the format's grammar, where its server supports that."""
    max_plan_tokens: int = Field(default=PLAN_TOKENS, ge=32)
    """A longer plan is cut off. Thoughts are not counted in it."""
    max_thinking_tokens: int | None = Field(default=None, ge=0)
    """How many tokens it may think before its plan, reserved and paid like the plan's. null: by its
    `effort` (low 4096, medium 8192, high 16384) for an API model that is known to think, else 0."""
    effort: Effort | None = None
    """How long it thinks before its plan, in the words of a worker's `effort`. null: its worker's own."""
    subtask_chars: int = Field(default=SUBTASK_CHARS, ge=20)
    """The longest subtask that the grammar allows, in characters."""
    fallback: str | None = None
    """The worker that answers alone when no plan can be made; while it is free, the conductor is not waited for for long,
    and not asked while its circuit is open. null: the first of the pool."""
    shuffle: bool = False
    """Show the pool in a new order and numbering at every request."""
    thought: bool | None = None
    """Let an API model write a thought of a sentence or two before the steps. Where it is not said: with
    the built-in prompts, if the model does not reason by itself."""
    timeout_s: float = Field(default=PLAN_TIMEOUT_S, gt=0)
    """How long it may write one plan, from its first token on, thoughts included; then a worker answers by
    itself."""


class ModelSettings(Frozen):
    """A name under which the conductor serves."""

    max_steps: int = Field(default=5, ge=1, le=20)
    """The most steps that one plan may have."""
    rounds: int = Field(default=1, ge=1, le=5)
    """How many plans a request may take: after each but the last, the conductor reads the answer and accepts
    it or plans again."""
    depth: int = Field(default=0, ge=0, le=3)
    """How deep a step may call the whole team again, as a worker of its own. 0: not at all. The conductor is told about what
    that costs: `max_steps` calls at the mean price of the workers, and a plan."""
    workers: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """The workers that its plans may use. null: the whole pool."""
    deadline_s: float | None = Field(default=None, gt=0)
    """Time limit of a request. null: `limits.default_deadline_s`."""
    on_step_failure: OnFailure = "fail"
    """Where a step fails that others read, its fallbacks too: `fail` ends the run, `skip` lets it go on and tells those who
    read the step. The answering step is never skipped."""
    max_cost_usd: Decimal | None = Field(default=None, gt=0)
    """Cost limit of a request, reserved before each call. null: none."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Token limit of a request, all calls together, reserved before each call. null: none."""


class StepSettings(Frozen):
    """A step of a fixed workflow. An empty subtask is the user's question as it stands."""

    worker: str
    """The worker that runs it."""
    subtask: str = ""
    """What it is to do."""
    access: tuple[int, ...] | Literal["all"] = ()
    """The earlier steps whose outputs it reads, counted from 0; or `all` of them."""
    tools: bool = True
    """Whether it may call the tools of the request."""
    on_failure: OnFailure | None = None
    """What follows where it fails: `fail` or `skip`; null: what the request's `podium.on_step_failure` says."""


class PromptSettings(Frozen):
    """Texts in place of the built-in ones (`conductor/plan/prompts.py`); `{max_steps}` is filled in."""

    conductor: str | None = None
    """What the conductor is and does."""
    steps: str | None = None
    """How a plan of the format `steps` is written."""
    lists: str | None = None
    """How a plan of the format `lists` is written."""
    worker: str | None = None
    """How a worker of the pool is shown; `{number}`, `{card}` and `{facts}` (price, speed, context, images)
    are filled in."""


class LimitSettings(Frozen):
    """What one router takes on."""

    max_body_bytes: int = Field(default=20_000_000, gt=0)
    """The longest request body in bytes, pictures included; a longer one gets 413."""
    max_text_bytes: int = Field(default=4_000_000, gt=0)
    """The longest text of a request, pictures aside: a million tokens of English, more than the models of
    most pools can read."""
    max_running: int = Field(default=2048, ge=1)
    """Requests that one router replica runs at once, those whose end is not yet written to the store among them, also while it is
    away; more get 429 with `Retry-After`."""
    max_running_bytes: int = Field(default=256_000_000, ge=1)
    """What the conversations of these requests may have in bytes together, pictures and files in base64: the process takes two to three
    times as much. Runs that are not written to the store yet count. More get 429 with `Retry-After`, but for those under 64 kB and one
    that comes alone."""
    max_reads: int = Field(default=1024, ge=8)
    """Reads that one router replica answers at once: lists, records, files, event streams, until their clients have all of the answer. A key
    may have a quarter of them and a team half; more get 429 with `Retry-After`. A quarter as many changes, such as cancelling a run, are
    counted beside them."""
    max_unread_bytes: int = Field(default=256_000_000, ge=1_000_000)
    """What the answers to reads may hold in bytes until their clients take them: a file that is downloaded holds 1 MB, an event stream
    0.4 MB, a larger record or list all of it. A key may have a quarter of it and a team half; more get 429 with `Retry-After`."""
    default_deadline_s: float = Field(default=600.0, gt=0)
    """Time limit of a request that neither its body nor its model limits."""
    heartbeat_s: float = Field(default=10.0, gt=0)
    """A stream that has been silent this long is sent a comment, so that proxies keep it open."""
    unread_s: float = Field(default=60.0, gt=0)
    """An answer ends of which its client has taken nothing for so long while more waits for it, and its run with it: it
    holds a worker's slot, or memory. Whenever a client takes something, the time begins again; behind HAProxy that is seen in lots of
    some 100 kB."""
    first_byte_s: float = Field(default=0.1, ge=0)
    """How long a stream waits before its first byte, so that an early failure can still be an HTTP status."""
    records: int = Field(default=1000, ge=1)
    """How many runs are kept for `GET /v1/workflows`, the newest ones. Beyond that the key that has most loses its
    oldest. With `store.records: false` so many names of `Idempotency-Key` are kept too, in the same way."""
    records_bytes: int = Field(default=64_000_000, ge=1)
    """How many bytes they may take together. Beyond that the key whose runs take most loses its oldest; the newest is
    kept whatever its size. Runs that wait for a store that is away have the same two limits."""


class HttpSettings(Frozen):
    """Who may call, and how slowly (`serving/edge`). Read when the server starts; a `user_config` does not
    change it.
    """

    hosts: tuple[str, ...] | None = None
    """Names that `Host` may say, beside the loopback's; `["*"]` is any. None: any, but on loopback only the
    loopback's."""
    origins: tuple[str, ...] = ()
    """Web pages of other origins that may call, such as `https://app.example.com`; `["*"]` is any."""

    @field_validator("origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            parts = urlsplit(origin)
            if origin != "*" and (not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}"):
                meant = (
                    f"{parts.scheme}://{parts.netloc}"
                    if parts.netloc
                    else f"https://{origin.partition('/')[0]}"
                )
                raise ValueError(f"{origin!r} is no origin, as browsers send it. Did you mean {meant!r}?")
        return origins

    @field_validator("hosts")
    @classmethod
    def _check_hosts(cls, hosts: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for host in hosts or ():
            if "/" in host or (host.rpartition(":")[2].isdigit() and host.count(":") == 1):
                meant = urlsplit(host if "//" in host else f"//{host}").hostname
                raise ValueError(
                    f"{host!r} must be a name alone, without scheme, port and path. Did you mean {meant!r}?"
                )
        return hosts

    max_header_bytes: int = Field(default=16_384, ge=1024)
    """The longest headers of a request, all together; longer ones get 431. So do longer trailers and chunk extensions of
    a body."""
    header_s: float = Field(default=10.0, gt=0)
    """A connection is closed that has not sent its first request's headers by then."""
    stall_s: float = Field(default=10.0, gt=0)
    """Between two pieces of a body."""
    body_s: float = Field(default=60.0, gt=0)
    """For a whole body."""
    max_waiting: int = Field(default=4096, ge=16)
    """Connections and bodies that may be unfinished at once; further ones push out those that have waited
    longest."""
    max_unfinished_bytes: int = Field(default=256_000_000, ge=1_000_000)
    """How much of unfinished bodies may be kept at once."""


class RouterSettings(Scaling):
    """How the HTTP ingress is sized. Its requests are runs, most of which wait for models."""

    min_replicas: int = Field(default=1, ge=1)
    """The fewest replicas."""
    target_ongoing_requests: float = Field(default=1000, gt=0)
    """Target concurrent requests per replica."""
    max_ongoing_requests: int = Field(default=4096, ge=1)
    """The most concurrent requests that a replica is given; more wait for a place. A sixteenth is kept for health probes: the replica answers
    further ones with 429, first those whose bodies are not whole."""
    target_calls: float = Field(default=500, gt=0)
    """Target concurrent calls to models per replica, those that wait for a slot included."""
    num_cpus: float = Field(default=0.5, ge=0)
    """Logical CPUs of one replica, as Ray counts them."""


Variable = Annotated[str, AfterValidator(check_variable)]


class StoreSettings(Frozen):
    """Where keys, budgets, the ledger and the records of runs are kept. The first thing that is to be kept makes the store; read
    when the server starts.
    """

    url_env: Variable = "PODIUM_STORE_URL"
    """The environment variable that holds the database's address, `postgresql://USER:PASSWORD@HOST/DATABASE`;
    where it is not set, a SQLite file is used. Routers on several nodes need PostgreSQL."""
    redis_url_env: Variable = "PODIUM_REDIS_URL"
    """The environment variable that holds the address of a Redis, `redis://:PASSWORD@HOST:6379/0`; where it is set,
    requests and tokens in a minute are counted there for all routers together, else by each router for itself."""
    path: Path | None = None
    """The SQLite file, on a disk of the machine itself, relative to the settings file: a store of this file's own. null: `podium/podium.db` in `$XDG_DATA_HOME`, or in
    `~/.local/share`."""
    records: bool = True
    """Write runs down: their records, and what happens in them. Off: the newest are kept in the memory of the
    replica that ran them, and gone with it."""
    when_away: Literal["refuse", "serve"] = "refuse"
    """What becomes of calls with a price while the database is away or its disk is full. `refuse`: 503. `serve`:
    they go on, past any budget, each is told in the log, and entered when the database is back, unless their router
    ends before; keys that a router has looked up within the hour are believed meanwhile."""
    keep_s: float = Field(default=3600.0, gt=0)
    """How long a run that outlives its client goes on at most: one with an `Idempotency-Key`, `podium.keep` or
    `podium.background`."""
    asked_again_s: float = Field(default=60.0, ge=0)
    """How long a request that is sent again joins the run of the first sending, whose answer failed or was cut off after
    a model was called; and how long such a run goes on without its client. For Responses, Messages, and whoever
    offers tools. 0: never."""
    tools_wait_s: float = Field(default=86_400.0, gt=0)
    """How long a run waits for the results of its client's tools. While it waits its texts are kept exactly as they are,
    because providers check that their own turns come back unchanged; so no longer than `content_days`, here or in a
    policy."""
    waiting_bytes_per_team: int | None = Field(default=1_000_000_000, ge=0)
    """How much room the runs of a team that wait for results of tools may take; the oldest are ended (`expired`). Keys
    without a team are one each. null: any."""
    content_days: float | None = Field(default=30.0, gt=0)
    """How long the texts of a run are kept: prompts, outputs, events. Its numbers stay. null: as long as those."""
    numbers_days: float | None = Field(default=400.0, gt=0)
    """How long the numbers of a run are kept, its record with them: tokens, cost, times, workers. The ledger
    stays. null: for ever."""
    content_bytes_per_team: int | None = Field(default=5_000_000_000, ge=0)
    """How much room the texts of a team's runs may take, as they are stored; the oldest go first. Keys without a
    team are one each. null: any."""


class CacheSettings(Frozen):
    """Answers given again to equal requests of the same team: nobody is called, and nothing is paid. A request with
    `podium: {cache: false}` is always asked.
    """

    keep_s: float | None = Field(default=None, gt=0)
    """How long an answer is given again. null: never."""
    teams: tuple[str, ...] | None = None
    """The ids of the teams for which this is done. null: all, keys without a team each for itself, and whoever
    asks where there are no keys."""


class BatchSettings(Frozen):
    """Files (`/v1/files`) and batches (`/v1/batches`): work without hurry."""

    max_file_bytes: int = Field(default=50_000_000, ge=1000)
    """The longest file that is taken; a longer one gets 413. The edge takes it when the server starts."""
    max_lines: int = Field(default=50_000, ge=1)
    """The most lines of a file of requests, empty ones included; a file with more gets 413. A line is a request:
    `limits.max_body_bytes` and `limits.max_text_bytes` hold for each."""
    max_bytes_per_team: int = Field(default=1_000_000_000, ge=1000)
    """How much room the files of a team may take together before further ones are refused. Keys without a team are one
    each."""
    file_days: float = Field(default=30.0, gt=0)
    """How long files and batches are kept; no longer than `store.content_days`."""
    max_open_per_team: int = Field(default=100, ge=1)
    """How many batches of a team may be open together before further ones are refused with 429. Keys without a team are
    one each."""
    at_once: int = Field(default=4, ge=1)
    """How many batches one router replica works on at once, each with its file in memory. Others wait, and keys take
    turns."""
    lines_at_once: int = Field(default=8, ge=1)
    """How many lines one router replica runs at once, all batches together."""
    room: float = Field(default=0.5, gt=0, le=1)
    """A line of a batch, or a request with `service_tier: flex`, begins only while fewer than this part of
    `limits.max_running` is under way: whoever waits for an answer has the rest. Else lines wait, and flex gets 429 with
    `Retry-After`."""


class TelemetrySettings(Frozen):
    """What is traced. Where spans go is the standard `OTEL_EXPORTER_OTLP_*` variables' business."""

    content: bool = False
    """Put prompts and outputs into spans, and what providers said in errors, which may quote them."""
    service_prefix: str = "podium"
    """How service names begin in traces: `podium-router`, `podium-<worker>`."""
