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
from conductor.run.team import PLAN_TIMEOUT_S, PLAN_TOKENS
from serving.settings.access import Effort, Frozen, check_variable
from serving.settings.scale import Scaling
from serving.settings.worker_base import PriceSettings


class ConductorSettings(Frozen):
    """Model that writes the plans, and how it is called."""

    worker: str
    """Name of the worker that writes the plans. If its API key is not set, its first available fallback
    writes them instead."""
    format: Literal["steps", "lists"] = "steps"
    """Format of the plans. With `steps`, the conductor writes one JSON object per step, so a step can start
    while the rest of the plan is still being written. With `lists`, the conductor writes the three lists of
    the RL Conductor paper."""
    temperature: float | None = Field(default=0.0, ge=0, le=2)
    """Sampling temperature for plans. If null, the model's own default applies."""
    constrained: bool = True
    """Constrain the plan to the grammar of the format. This has no effect if the model's server does not
    support constrained decoding."""
    max_plan_tokens: int = Field(default=PLAN_TOKENS, ge=32)
    """Maximum length of a plan in tokens, not counting the tokens spent on thinking. A longer plan is cut
    off."""
    max_thinking_tokens: int | None = Field(default=None, ge=0)
    """Maximum number of tokens that the conductor may spend on thinking before it writes a plan. They are
    reserved and billed like the tokens of the plan. If null, the limit follows from the effort for an API
    model that is known to think: 1024 for `minimal`, 4096 for `low`, 8192 for `medium`, 16384 for `high`, and
    32768 for `xhigh` and `max`. For any other model, it is 0."""
    effort: Effort | None = None
    """Reasoning effort for plans. The values are those of a worker's `effort`. If null, the worker's own
    `effort` applies."""
    subtask_chars: int = Field(default=SUBTASK_CHARS, ge=20)
    """Approximate maximum length of a subtask in characters. The grammar enforces it."""
    fallback: str | None = None
    """Worker that answers the request alone if no plan can be made. If null, the first worker of the pool
    does. While this worker has a free slot, Podium waits only briefly for the conductor, and skips a
    conductor whose circuit is open."""
    shuffle: bool = False
    """Show the workers to the conductor in a random order, with new numbers, in each request."""
    thought: bool | None = None
    """Let an API model write one or two sentences of thought before the steps. If null, the conductor does
    this only if the prompts are the built-in ones and its model does not reason on its own."""
    timeout_s: float = Field(default=PLAN_TIMEOUT_S, gt=0)
    """Maximum time for writing one plan, in seconds. The time starts at the first token and includes
    thinking. When it is over, a worker answers without a plan."""


class ModelSettings(Frozen):
    """Model name that the conductor serves, with the limits of its requests."""

    max_steps: int = Field(default=5, ge=1, le=20)
    """Maximum number of steps in one plan."""
    rounds: int = Field(default=1, ge=1, le=5)
    """Maximum number of plans per request. After each plan except the last, the conductor reads the answer.
    It then accepts the answer or writes a new plan."""
    depth: int = Field(default=0, ge=0, le=3)
    """Maximum depth of nested plans. At 1 or more, a step may call the whole pool again, as if it were one
    worker. The conductor then writes a plan for that step. At 0, plans are never nested. The conductor is
    shown an approximate price for a nested plan: one plan, plus `max_steps` calls at the mean price of the
    workers."""
    workers: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Workers that plans may use. If null, plans may use the whole pool."""
    deadline_s: float | None = Field(default=None, gt=0)
    """Time limit of a request in seconds. If null, `limits.default_deadline_s` applies."""
    on_step_failure: OnFailure = "fail"
    """Action if a step and all its fallbacks fail, and other steps read its output. With `fail`, the run
    ends. With `skip`, the run continues, and the steps that read the output are informed that it is missing.
    The step that writes the answer is never skipped."""
    max_cost_usd: Decimal | None = Field(default=None, gt=0)
    """Maximum cost of a request in US dollars. Podium reserves the maximum cost of each call before it sends
    the call. If null, there is no limit."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Maximum number of tokens of a request, over all its calls. Podium reserves the tokens of each call
    before it sends the call. If null, there is no limit."""


class StepSettings(Frozen):
    """Step of a fixed workflow."""

    worker: str
    """Worker that runs the step."""
    subtask: str = ""
    """Instruction for the worker. If empty, the worker gets the user's question unchanged."""
    access: tuple[int, ...] | Literal["all"] = ()
    """Earlier steps whose outputs the step reads, as numbers counted from 0, or `all` for every earlier step.
    """
    tools: bool = True
    """Let the step call the tools that the request offers."""
    on_failure: OnFailure | None = None
    """Action if the step fails: `fail` or `skip`. If null, the request's `podium.on_step_failure` decides."""


class PromptSettings(Frozen):
    """Replacements for the built-in prompts (`conductor/plan/prompts.py`). The text may contain
    `{max_steps}`, which Podium replaces by its value. If a field is null, the built-in text is used.
    """

    conductor: str | None = None
    """Role and task of the conductor."""
    steps: str | None = None
    """Instructions for writing a plan in the format `steps`."""
    lists: str | None = None
    """Instructions for writing a plan in the format `lists`."""
    worker: str | None = None
    """Description of one worker, as the conductor sees it. Podium replaces `{number}`, `{card}` and `{facts}`
    in the text. The facts are the worker's price, speed and context length, and whether it sees images."""


class LimitSettings(Frozen):
    """Limits of one router replica."""

    max_body_bytes: int = Field(default=20_000_000, gt=0)
    """Maximum size of a request body in bytes, including images. A larger body gets 413."""
    max_text_bytes: int = Field(default=4_000_000, gt=0)
    """Maximum size of the text of a request in bytes, not counting images and files. A longer text gets 413.
    The default is about a million tokens of English, which is more than most models can read."""
    max_running: int = Field(default=2048, ge=1)
    """Maximum number of concurrent requests. A request counts until its end is written to the store, even
    while the store is unavailable. Further requests get 429 with `Retry-After`."""
    max_running_bytes: int = Field(default=256_000_000, ge=1)
    """Maximum total size, in bytes, of the conversations of running requests, with images and files in
    base64. Runs that have ended but are not yet written to the store count too. Further requests get 429 with
    `Retry-After`. Exceptions are requests of up to 64 kB, and a request that arrives while no other is
    running. The process needs two to three times this much memory."""
    max_reads: int = Field(default=1024, ge=8)
    """Maximum number of concurrent reads of lists, records, files and event streams. A read counts until its
    client has received the whole answer. One key may use a quarter of this number, and one team half of it.
    Further reads get 429 with `Retry-After`. Changes, such as cancelling a run, have a separate limit, which
    is a quarter of this one."""
    max_unread_bytes: int = Field(default=256_000_000, ge=1_000_000)
    """Maximum total size, in bytes, of answers to reads that clients have not yet received. A file download
    counts as 1 MB and an event stream as 0.4 MB. A record or a list of more than 64 kB counts with its full
    size. One key may use a quarter of the limit, and one team half of it. Further reads get 429 with
    `Retry-After`."""
    default_deadline_s: float = Field(default=600.0, gt=0)
    """Time limit of a request in seconds, if neither the request nor its model sets one."""
    heartbeat_s: float = Field(default=10.0, gt=0)
    """Maximum silence of a stream in seconds. After this time, Podium sends a comment, so that proxies keep
    the connection open."""
    unread_s: float = Field(default=60.0, gt=0)
    """Maximum time, in seconds, for which a client may leave its answer unread while more of it is ready.
    After this time, Podium ends the answer and its run, because both hold a worker's slot or memory. The time
    starts again whenever the client reads something. Behind HAProxy, Podium notices this only about every 100
    kB."""
    first_byte_s: float = Field(default=0.1, ge=0)
    """Seconds that a stream waits before its first byte. A failure within this time can still set the HTTP
    status."""
    records: int = Field(default=1000, ge=1)
    """Maximum number of runs that a replica keeps in memory for `GET /v1/workflows` if `store.records` is
    false. Above the limit, the oldest run of the key with the most runs is dropped. The same limit applies to
    the names of `Idempotency-Key`, and to ended runs that wait while the store is unavailable."""
    records_bytes: int = Field(default=64_000_000, ge=1)
    """Maximum total size, in bytes, of the runs that `records` counts. Above the limit, the oldest run is
    dropped from the key whose runs take the most memory. The newest run is kept, whatever its size."""


class HttpSettings(Frozen):
    """Accepted hosts and origins, and limits for slow clients (`serving/edge`). These settings are read when
    the server starts. A `user_config` does not change them.
    """

    hosts: tuple[str, ...] | None = None
    """Names that are accepted in the `Host` header, such as `podium.example.com`. The names of the loopback
    interface are always accepted. `["*"]` accepts any name. If null, any name is accepted, except on loopback
    connections, which accept only loopback names."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may call this server, such as `https://app.example.com`. `["*"]` allows any
    origin. Pages of the server's own origin may always call it."""

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
                raise ValueError(f"{origin!r} must be a scheme and a host only. Did you mean {meant!r}?")
        return origins

    @field_validator("hosts")
    @classmethod
    def _check_hosts(cls, hosts: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for host in hosts or ():
            if "/" in host or (host.rpartition(":")[2].isdigit() and host.count(":") == 1):
                meant = urlsplit(host if "//" in host else f"//{host}").hostname
                raise ValueError(
                    f"{host!r} must be a host name without a scheme, port or path. Did you mean {meant!r}?"
                )
        return hosts

    max_header_bytes: int = Field(default=16_384, ge=1024)
    """Maximum total size of a request's headers in bytes. Larger headers get 431. The same limit applies to
    the trailers and the chunk extensions of a body."""
    header_s: float = Field(default=10.0, gt=0)
    """Maximum time, in seconds, in which a new connection must send the headers of its first request. After
    this time, the connection is closed."""
    stall_s: float = Field(default=10.0, gt=0)
    """Maximum pause between two pieces of a request body, in seconds. After a longer pause, the request gets
    408."""
    body_s: float = Field(default=60.0, gt=0)
    """Maximum time for receiving a whole request body, in seconds. A slower request gets 408."""
    max_waiting: int = Field(default=4096, ge=16)
    """Maximum number of connections and bodies that are still incomplete. Above the limit, Podium closes the
    oldest connection of the client address that has the most."""
    max_unfinished_bytes: int = Field(default=256_000_000, ge=1_000_000)
    """Maximum total size of incomplete request bodies in bytes."""


class RouterSettings(Scaling):
    """Number and size of the router replicas. A router replica answers HTTP requests. Most of its requests
    are runs that wait for models.
    """

    min_replicas: int = Field(default=1, ge=1)
    """Minimum number of replicas."""
    target_ongoing_requests: float = Field(default=1000, gt=0)
    """Target number of concurrent requests per replica."""
    max_ongoing_requests: int = Field(default=4096, ge=1)
    """Maximum number of concurrent requests that are sent to one replica. Further requests wait until one
    ends. A sixteenth of the limit is reserved for health probes. When the rest is in use, the replica answers
    further requests with 429. It rejects requests with incomplete bodies first."""
    target_calls: float = Field(default=500, gt=0)
    """Target number of concurrent model calls per replica, including calls that wait for a slot."""
    num_cpus: float = Field(default=0.5, ge=0)
    """Logical CPUs per replica, as Ray counts them."""


Variable = Annotated[str, AfterValidator(check_variable)]


class StoreSettings(Frozen):
    """Storage of keys, budgets, the ledger and the records of runs. The database is created when the first of
    these is stored. These settings are read when the server starts.
    """

    url_env: Variable = "PODIUM_STORE_URL"
    """Name of the environment variable that holds the address of the database, such as
    `postgresql://USER:PASSWORD@HOST/DATABASE`. If the variable is not set, Podium uses a SQLite file. Routers
    on several nodes need PostgreSQL."""
    redis_url_env: Variable = "PODIUM_REDIS_URL"
    """Name of the environment variable that holds the address of a Redis server, such as
    `redis://:PASSWORD@HOST:6379/0`. If the variable is set, Redis counts requests and tokens per minute for
    all routers together. Otherwise, each router counts its own."""
    path: Path | None = None
    """SQLite file that only this settings file uses. It must be on a local disk. A relative path is relative
    to the settings file. If null, the file is `podium/podium.db` in `$XDG_DATA_HOME`, or in `~/.local/share`
    if that variable is not set."""
    records: bool = True
    """Store the records and events of runs in the database. If false, the newest runs stay in the memory of
    the replica that ran them. They are lost when that replica ends."""
    when_away: Literal["refuse", "serve"] = "refuse"
    """Action for calls to workers with a price, while the database is unavailable or its disk is full. With
    `refuse`, they are rejected with 503. With `serve`, they continue without a check of their budgets. Each
    of these calls is logged. It is entered in the ledger when the database is back, unless its router ends
    first. With `serve`, keys that a router has verified within the last hour also remain valid."""
    keep_s: float = Field(default=3600.0, gt=0)
    """Maximum time, in seconds, for which a run continues without its client. It applies to runs with an
    `Idempotency-Key`, `podium.keep` or `podium.background`. The key itself is remembered for 24 hours."""
    asked_again_s: float = Field(default=60.0, ge=0)
    """Seconds for which a retried request joins the original run instead of starting a new one. It applies if
    the answer failed or was cut off after a model was called, so that the client does not pay twice. The
    original run continues without its client for the same time. This applies to Responses, to Messages and to
    requests that offer tools. At 0, a retried request always starts a new run."""
    tools_wait_s: float = Field(default=86_400.0, gt=0)
    """Maximum time, in seconds, for which a run waits for the results of its client's tools. During this
    time, the texts of the run are stored unchanged, because providers check that their own turns come back
    unchanged. A run therefore never waits longer than `content_days`, whether that is set here or in a
    policy."""
    waiting_bytes_per_team: int | None = Field(default=1_000_000_000, ge=0)
    """Maximum total size, in bytes, of a team's runs that wait for tool results. Above the limit, the oldest
    of these runs end with `expired`. A key without a team counts as its own team. If null, there is no limit.
    """
    content_days: float | None = Field(default=30.0, gt=0)
    """Days until the texts of a run are deleted, which are its prompts, outputs and events. The numbers of
    the run remain. If null, the texts are kept as long as the numbers."""
    numbers_days: float | None = Field(default=400.0, gt=0)
    """Days until the record of a run is deleted with its numbers. The numbers are its tokens, cost, times and
    workers. Entries in the ledger remain. If null, records are never deleted."""
    content_bytes_per_team: int | None = Field(default=5_000_000_000, ge=0)
    """Maximum total stored size, in bytes, of the texts of a team's runs. Above the limit, the oldest texts
    are deleted. A key without a team counts as its own team. If null, there is no limit."""


class CacheSettings(Frozen):
    """Cache of answers to equal requests of the same team. A cached answer calls no model and costs nothing.
    A request with `podium: {cache: false}` bypasses the cache.
    """

    keep_s: float | None = Field(default=None, gt=0)
    """Seconds for which an answer is reused. If null, the cache is off."""
    teams: tuple[str, ...] | None = None
    """Ids of the teams that use the cache. If null, all teams use it. Each key without a team has its own
    cache. If no keys are required, requests without a key share one more cache."""


class ConversationSettings(Frozen):
    """Turns of one conversation. They share a long prefix, which providers bill at a tenth if they have cached it.
    Podium therefore prefers the worker, the deployment and the replica that answered before.
    """

    stickiness: float = Field(default=0.5, ge=0)
    """Weight of the lost cache. If the conductor chooses another worker than the one that answered before, that
    worker must read the conversation again. Podium keeps the worker if the cost of this, times the weight, is
    higher than the expected gain. At 0, the conductor alone decides, except while a conversation ends with tool
    results: then its worker answers."""
    speculation_usd_per_s: Decimal | None = Field(default=Decimal("0.01"), ge=0)
    """Value of a second of waiting, in US dollars. While the conductor decides, Podium calls the conversation's
    worker early if the expected cost of unnecessary calls is lower than the value of the time that it saves. An
    early call never uses more than half of the worker's slots (`max_concurrency`), so that it does not delay other
    calls of a busy worker. If null, the worker is never called early."""
    keep_s: float = Field(default=3600.0, gt=0, le=86_400)
    """Seconds for which Podium remembers which worker answered, after each turn."""
    breakpoints: bool = True
    """Set breakpoints for Anthropic's prompt cache in requests that have none. They are set only if the prompt is
    long enough and will probably be sent again."""
    cache_lifetime: Literal["auto", "5m", "1h"] = "auto"
    """Lifetime of these breakpoints. An hour costs more to write than five minutes. With `auto`, it is an hour
    once more than four minutes have passed between two turns of the conversation."""


class BaselineSettings(Frozen):
    """Model for comparison. `GET /v1/costs` and `podium costs` estimate what its answers would have cost.
    `baseline: gpt-5` is short for `baseline: {model: gpt-5}`.
    """

    model: str = Field(min_length=1)
    """Name of a worker, or of a model in the price table that ships with Podium."""
    price: PriceSettings | None = None
    """Price of the model's tokens. If null, it is the price of the worker with this name, or the price in the
    table."""


class BatchSettings(Frozen):
    """Files (`/v1/files`) and batches (`/v1/batches`), for requests that are not urgent."""

    max_file_bytes: int = Field(default=50_000_000, ge=1000)
    """Maximum size of a file in bytes. A larger file gets 413. The limit for uploads is read when the server
    starts."""
    max_lines: int = Field(default=50_000, ge=1)
    """Maximum number of lines in a file of requests, including empty lines. A file with more lines gets 413.
    Each line is one request, and `limits.max_body_bytes` and `limits.max_text_bytes` apply to it."""
    max_bytes_per_team: int = Field(default=1_000_000_000, ge=1000)
    """Maximum total size of a team's files in bytes. Further files are rejected. A key without a team counts
    as its own team."""
    file_days: float = Field(default=30.0, gt=0)
    """Days until files and batches are deleted. If `store.content_days`, or that of a policy, is shorter, it
    applies instead."""
    max_open_per_team: int = Field(default=100, ge=1)
    """Maximum number of unfinished batches of a team. Further batches get 429. A key without a team counts as
    its own team."""
    at_once: int = Field(default=4, ge=1)
    """Maximum number of concurrent batches in one router replica. The file of each is held in memory. Further
    batches wait, and keys take turns."""
    lines_at_once: int = Field(default=8, ge=1)
    """Maximum number of concurrent lines in one router replica, over all batches."""
    room: float = Field(default=0.5, gt=0, le=1)
    """Share of `limits.max_running` that batches and requests with `service_tier: flex` may use. The rest is
    reserved for interactive requests. Above the share, lines of batches wait, and flex requests get 429 with
    `Retry-After`."""


class TelemetrySettings(Frozen):
    """Contents of traces. The standard `OTEL_EXPORTER_OTLP_*` variables decide where spans are sent."""

    content: bool = False
    """Include prompts and outputs in spans. This also includes error messages of providers, which may quote a
    prompt."""
    service_prefix: str = "podium"
    """Prefix of service names in traces. The default gives `podium-router`, and `podium-<worker>` for each
    worker."""
