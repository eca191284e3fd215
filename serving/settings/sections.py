"""Sections of a settings file, except its workers. The docstring of a field is its description in
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
    """Model that writes the plans, and how it is called."""

    worker: str
    """Name of the worker that writes the plans. If its key is not set, its first available fallback takes its
    place."""
    format: Literal["steps", "lists"] = "steps"
    """Format of plans. `steps`: one JSON object per step, so that a step can start while the rest of the plan
    is being written. `lists`: the three lists of the RL Conductor paper."""
    temperature: float | None = Field(default=0.0, ge=0, le=2)
    """Sampling temperature for plans. If null, the model's own default."""
    constrained: bool = True
    """Constrain decoding to the grammar of the format, if the model's server supports it."""
    max_plan_tokens: int = Field(default=PLAN_TOKENS, ge=32)
    """Maximum length of a plan in tokens, not counting thoughts. A longer plan is cut off."""
    max_thinking_tokens: int | None = Field(default=None, ge=0)
    """Maximum number of tokens that the conductor may think before its plan. They are reserved and paid like
    those of the plan. If null: by `effort` (low 4096, medium 8192, high 16384) for an API model that is known
    to think, otherwise 0."""
    effort: Effort | None = None
    """Reasoning effort for plans, with the values of a worker's `effort`. If null, the worker's own `effort`."""
    subtask_chars: int = Field(default=SUBTASK_CHARS, ge=20)
    """Approximate maximum length of a subtask that the grammar allows, in characters."""
    fallback: str | None = None
    """Worker that answers alone if no plan can be made. While it has a free slot, the wait for the conductor
    is short, and a conductor with an open circuit is skipped. If null, the first worker of the pool."""
    shuffle: bool = False
    """Show the pool to the conductor in a new order and with new numbers at every request."""
    thought: bool | None = None
    """Let an API model write a thought of one or two sentences before the steps. If null: only with the
    built-in prompts, and only if the model does not reason on its own."""
    timeout_s: float = Field(default=PLAN_TIMEOUT_S, gt=0)
    """Maximum time for writing one plan, in seconds from its first token, thoughts included. After that, a
    worker answers without a plan."""


class ModelSettings(Frozen):
    """Model name that the conductor serves, with the limits of its requests."""

    max_steps: int = Field(default=5, ge=1, le=20)
    """Maximum number of steps in one plan."""
    rounds: int = Field(default=1, ge=1, le=5)
    """Maximum number of plans per request. After every plan but the last, the conductor reads the answer and
    accepts it or plans again."""
    depth: int = Field(default=0, ge=0, le=3)
    """Maximum depth of nested plans: a step may call the whole team again, as if it were a worker. 0: never.
    The conductor is shown an approximate cost for it: `max_steps` calls at the mean price of the workers,
    plus one plan."""
    workers: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Workers that plans may use. If null, the whole pool."""
    deadline_s: float | None = Field(default=None, gt=0)
    """Time limit of a request in seconds. If null, `limits.default_deadline_s`."""
    on_step_failure: OnFailure = "fail"
    """Action if a step that other steps read fails, its fallbacks included. `fail`: end the run. `skip`:
    continue the run, and tell the steps that read it. The step that writes the answer is never skipped."""
    max_cost_usd: Decimal | None = Field(default=None, gt=0)
    """Cost limit of a request in US dollars, reserved before each call. If null, no limit."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Token limit of a request, over all its calls, reserved before each call. If null, no limit."""


class StepSettings(Frozen):
    """Step of a fixed workflow."""

    worker: str
    """Worker that runs the step."""
    subtask: str = ""
    """Instruction for the worker. If empty, the step gets the user's question unchanged."""
    access: tuple[int, ...] | Literal["all"] = ()
    """Earlier steps whose outputs the step reads, counted from 0, or `all` of them."""
    tools: bool = True
    """Let the step call the request's tools."""
    on_failure: OnFailure | None = None
    """Action if the step fails: `fail` or `skip`. If null, the request's `podium.on_step_failure` decides."""


class PromptSettings(Frozen):
    """Replacements for the built-in prompts (`conductor/plan/prompts.py`). `{max_steps}` is filled in. If
    null, the built-in text is used.
    """

    conductor: str | None = None
    """Role and task of the conductor."""
    steps: str | None = None
    """Instructions for a plan in the format `steps`."""
    lists: str | None = None
    """Instructions for a plan in the format `lists`."""
    worker: str | None = None
    """Description of one worker of the pool for the conductor. `{number}`, `{card}` and `{facts}` (price,
    speed, context, images) are filled in."""


class LimitSettings(Frozen):
    """Limits of one router replica."""

    max_body_bytes: int = Field(default=20_000_000, gt=0)
    """Maximum size of a request body in bytes, images included. A larger one gets 413."""
    max_text_bytes: int = Field(default=4_000_000, gt=0)
    """Maximum size of the text of a request in bytes, not counting images and files. More text gets 413. The
    default is about a million tokens of English, more than the models of most pools can read."""
    max_running: int = Field(default=2048, ge=1)
    """Maximum number of concurrent requests. A request counts until its end is written to the store, also
    while the store is unavailable. Further requests get 429 with `Retry-After`."""
    max_running_bytes: int = Field(default=256_000_000, ge=1)
    """Maximum total size of the conversations of these requests in bytes, with images and files in base64.
    The process needs two to three times as much memory. Runs that are not yet written to the store count.
    Further requests get 429 with `Retry-After`, except those up to 64 kB and one that arrives while no other
    is running."""
    max_reads: int = Field(default=1024, ge=8)
    """Maximum number of concurrent reads: lists, records, files and event streams, each until its client has
    the whole answer. One key may use a quarter of them and one team half. Further reads get 429 with
    `Retry-After`. Changes, such as cancelling a run, have a separate limit of a quarter of this one."""
    max_unread_bytes: int = Field(default=256_000_000, ge=1_000_000)
    """Maximum total size, in bytes, of answers to reads that clients have not received yet. A file download
    counts as 1 MB, an event stream as 0.4 MB, and a larger record or list as its full size. One key may use a
    quarter of it and one team half. Further reads get 429 with `Retry-After`."""
    default_deadline_s: float = Field(default=600.0, gt=0)
    """Time limit of a request in seconds, if neither its body nor its model sets one."""
    heartbeat_s: float = Field(default=10.0, gt=0)
    """Maximum silence of a stream in seconds. After it, a comment is sent so that proxies keep the connection
    open."""
    unread_s: float = Field(default=60.0, gt=0)
    """Maximum time in seconds for which a client may read nothing while more of its answer is ready. Then the
    answer ends, and its run with it, because both hold a worker's slot or memory. The time starts again
    whenever the client reads something. Behind HAProxy, that is noticed only about every 100 kB."""
    first_byte_s: float = Field(default=0.1, ge=0)
    """Seconds that a stream waits before its first byte, so that an early failure can still set the HTTP
    status."""
    records: int = Field(default=1000, ge=1)
    """Maximum number of runs that a replica keeps in memory for `GET /v1/workflows` if `store.records` is
    false: the newest. Beyond that, the key with the most runs loses its oldest. The same limit applies to the
    names of `Idempotency-Key`, and to the runs that wait while the store is unavailable."""
    records_bytes: int = Field(default=64_000_000, ge=1)
    """Maximum total size of these runs in bytes. Beyond that, the key whose runs take the most loses its
    oldest. The newest run is kept whatever its size."""


class HttpSettings(Frozen):
    """Accepted hosts and origins, and the limits for slow clients (`serving/edge`). Read when the server
    starts; a `user_config` does not change them.
    """

    hosts: tuple[str, ...] | None = None
    """Names accepted in the `Host` header, such as `podium.example.com`, in addition to those of the loopback
    interface. `["*"]` accepts any. If null, any name is accepted, except on connections over loopback, which
    accept only loopback names."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may call this server, such as `https://app.example.com`. `["*"]` allows any.
    Pages of the server's own origin always may."""

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
                raise ValueError(f"{origin!r} is not an origin as browsers send it. Did you mean {meant!r}?")
        return origins

    @field_validator("hosts")
    @classmethod
    def _check_hosts(cls, hosts: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for host in hosts or ():
            if "/" in host or (host.rpartition(":")[2].isdigit() and host.count(":") == 1):
                meant = urlsplit(host if "//" in host else f"//{host}").hostname
                raise ValueError(
                    f"{host!r} must be a host name without scheme, port and path. Did you mean {meant!r}?"
                )
        return hosts

    max_header_bytes: int = Field(default=16_384, ge=1024)
    """Maximum total size of a request's headers in bytes. More gets 431. The same limit applies to the
    trailers and the chunk extensions of a body."""
    header_s: float = Field(default=10.0, gt=0)
    """Maximum time in seconds for a new connection to send the headers of its first request. Then the
    connection is closed."""
    stall_s: float = Field(default=10.0, gt=0)
    """Maximum pause between two pieces of a request body, in seconds. A longer one gets 408."""
    body_s: float = Field(default=60.0, gt=0)
    """Maximum time for receiving a whole request body, in seconds. A slower one gets 408."""
    max_waiting: int = Field(default=4096, ge=16)
    """Maximum number of incomplete connections and bodies. Beyond that, those that have waited longest are
    dropped."""
    max_unfinished_bytes: int = Field(default=256_000_000, ge=1_000_000)
    """Maximum total size of incomplete bodies in bytes."""


class RouterSettings(Scaling):
    """Size of the HTTP router deployment. Its requests are runs, most of which wait for models."""

    min_replicas: int = Field(default=1, ge=1)
    """Minimum number of replicas."""
    target_ongoing_requests: float = Field(default=1000, gt=0)
    """Target number of concurrent requests per replica."""
    max_ongoing_requests: int = Field(default=4096, ge=1)
    """Maximum number of concurrent requests sent to one replica; more wait until one ends. A sixteenth is
    reserved for health probes: the replica answers further requests with 429, first those whose bodies are
    incomplete."""
    target_calls: float = Field(default=500, gt=0)
    """Target number of concurrent calls to models per replica, including those that wait for a slot."""
    num_cpus: float = Field(default=0.5, ge=0)
    """Logical CPUs per replica, as Ray counts them."""


Variable = Annotated[str, AfterValidator(check_variable)]


class StoreSettings(Frozen):
    """Storage of keys, budgets, the ledger and the records of runs. It is created when the first of them is
    stored. Read when the server starts.
    """

    url_env: Variable = "PODIUM_STORE_URL"
    """Environment variable with the address of the database, `postgresql://USER:PASSWORD@HOST/DATABASE`. If
    it is not set, a SQLite file is used. Routers on several nodes need PostgreSQL."""
    redis_url_env: Variable = "PODIUM_REDIS_URL"
    """Environment variable with the address of a Redis server, `redis://:PASSWORD@HOST:6379/0`. If it is set,
    requests and tokens per minute are counted there for all routers together; otherwise each router counts
    its own."""
    path: Path | None = None
    """SQLite file for this settings file alone, on a local disk. A relative path is relative to the settings
    file. If null: `podium/podium.db` in `$XDG_DATA_HOME`, or in `~/.local/share`."""
    records: bool = True
    """Store the records of runs and their events in the database. If false, the newest runs are kept in the
    memory of the replica that ran them and are lost when it ends."""
    when_away: Literal["refuse", "serve"] = "refuse"
    """Action for calls with a price while the database is unavailable or its disk is full. `refuse`: reject
    them with 503. `serve`: let them continue without a check of their budgets. Each of these is logged, and
    entered in the ledger when the database is back, unless its router ends first. Meanwhile, keys that a
    router has verified within the last hour remain valid."""
    keep_s: float = Field(default=3600.0, gt=0)
    """Maximum time in seconds that a run continues without its client, if it has an `Idempotency-Key`,
    `podium.keep` or `podium.background`."""
    asked_again_s: float = Field(default=60.0, ge=0)
    """Seconds for which a retried request joins the original run, if that run's answer failed or was cut off
    after a model was called. For as long, such a run continues without its client. Applies to Responses,
    Messages and requests that offer tools. 0: never."""
    tools_wait_s: float = Field(default=86_400.0, gt=0)
    """Maximum time in seconds that a run waits for the results of its client's tools. Meanwhile its texts are
    stored unchanged, because providers verify that their own turns come back unchanged. So the run waits no
    longer than `content_days`, here or in a policy."""
    waiting_bytes_per_team: int | None = Field(default=1_000_000_000, ge=0)
    """Maximum total size, in bytes, of a team's runs that wait for tool results. Beyond that, the oldest end
    (`expired`). Each key without a team counts as a team. If null, no limit."""
    content_days: float | None = Field(default=30.0, gt=0)
    """Days until the texts of a run are deleted: prompts, outputs and events. Its numbers stay. If null, its
    texts are kept as long as its numbers."""
    numbers_days: float | None = Field(default=400.0, gt=0)
    """Days until the record of a run is deleted with its numbers: tokens, cost, times and workers. The ledger
    stays. If null, never."""
    content_bytes_per_team: int | None = Field(default=5_000_000_000, ge=0)
    """Maximum total size of the texts of a team's runs in bytes, as stored. Beyond that, the oldest are
    deleted. Each key without a team counts as a team. If null, no limit."""


class CacheSettings(Frozen):
    """Cache of answers to equal requests of the same team. A cached answer calls no model and costs nothing.
    A request with `podium: {cache: false}` bypasses the cache.
    """

    keep_s: float | None = Field(default=None, gt=0)
    """Seconds for which an answer is reused. If null, the cache is off."""
    teams: tuple[str, ...] | None = None
    """Ids of the teams that use the cache. If null, all do. Each key without a team has a cache of its own,
    and so do requests without a key if no keys are required."""


class BatchSettings(Frozen):
    """Files (`/v1/files`) and batches (`/v1/batches`): requests that are not urgent."""

    max_file_bytes: int = Field(default=50_000_000, ge=1000)
    """Maximum size of a file in bytes. A larger one gets 413. The limit for uploads is read when the server
    starts."""
    max_lines: int = Field(default=50_000, ge=1)
    """Maximum number of lines in a file of requests, empty ones included. More gets 413. Each line is a
    request, limited by `limits.max_body_bytes` and `limits.max_text_bytes`."""
    max_bytes_per_team: int = Field(default=1_000_000_000, ge=1000)
    """Maximum total size of a team's files in bytes. Further files are rejected. Each key without a team
    counts as a team."""
    file_days: float = Field(default=30.0, gt=0)
    """Days until files and batches are deleted; at most `store.content_days`."""
    max_open_per_team: int = Field(default=100, ge=1)
    """Maximum number of unfinished batches of a team. Further ones get 429. Each key without a team counts as
    a team."""
    at_once: int = Field(default=4, ge=1)
    """Maximum number of concurrent batches in one router replica, each with its file in memory. Others wait,
    and keys take turns."""
    lines_at_once: int = Field(default=8, ge=1)
    """Maximum number of concurrent lines in one router replica, over all batches."""
    room: float = Field(default=0.5, gt=0, le=1)
    """Share of `limits.max_running` up to which a line of a batch, or a request with `service_tier: flex`,
    may start. The rest is reserved for interactive requests. Beyond it, lines wait, and flex requests get 429
    with `Retry-After`."""


class TelemetrySettings(Frozen):
    """Contents of traces. The standard `OTEL_EXPORTER_OTLP_*` variables decide where spans are sent."""

    content: bool = False
    """Include prompts and outputs in spans, and the messages of provider errors, which may quote them."""
    service_prefix: str = "podium"
    """Prefix of service names in traces: `podium-router`, `podium-<worker>`."""
