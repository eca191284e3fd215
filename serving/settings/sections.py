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
from serving.settings.model_access import Effort, Frozen, check_variable
from serving.settings.scale import Scaling
from serving.settings.worker_base import PriceSettings


class ConductorSettings(Frozen):
    """Model that writes the plans, and how Podium calls it."""

    worker: str
    """Name of the worker that writes the plans. If the API key of this worker is not set, its first available
    fallback writes the plans instead."""
    format: Literal["steps", "lists"] = "steps"
    """Format of the plans. With `steps`, the conductor writes one JSON object per step, so a step can start
    while the rest of the plan is still being written. With `lists`, the conductor writes the three lists of
    the RL Conductor paper."""
    temperature: float | None = Field(default=0.0, ge=0, le=2)
    """Sampling temperature for plans. If null, the model's own default applies."""
    constrained: bool = True
    """Let the model's server generate only plans that follow the grammar of the format. This has no effect if
    the server does not support constrained decoding."""
    max_plan_tokens: int = Field(default=PLAN_TOKENS, ge=32)
    """Maximum length of a plan in tokens, not counting the tokens spent on thinking. A longer plan is cut
    off."""
    max_thinking_tokens: int | None = Field(default=None, ge=0)
    """Maximum number of tokens that the conductor may spend on thinking before it writes a plan. These tokens
    are reserved and billed like those of the plan. If null, and if the conductor is an API model that is
    known to think, the limit depends on the effort: 1024 for `minimal`, 4096 for `low`, 8192 for `medium`,
    16384 for `high`, and 32768 for `xhigh` and `max`. For other conductors, null means 0."""
    effort: Effort | None = None
    """Reasoning effort for plans. It has the same values as a worker's `effort`. If null, the worker's own
    `effort` applies."""
    subtask_chars: int = Field(default=SUBTASK_CHARS, ge=20)
    """Approximate maximum length of a subtask in characters. The grammar enforces it."""
    fallback: str | None = None
    """Worker that answers the request alone if no plan can be made. If null, the first worker of the pool
    does this. While this worker has a free slot, Podium waits only briefly for the conductor, and does not
    call a conductor whose circuit is open."""
    shuffle: bool = False
    """In each request, show the workers to the conductor in a random order, with new numbers."""
    thought: bool | None = None
    """Let an API model write one or two sentences of thought before the steps. If null, a conductor does this
    only if it has the built-in prompts and its model does not reason on its own."""
    timeout_s: float = Field(default=PLAN_TIMEOUT_S, gt=0)
    """Maximum time, in seconds, from the first token of a plan to its end, including thinking. If the plan is
    not complete by then, a worker answers without a plan."""


class ModelSettings(Frozen):
    """Model name that clients can request, and the limits of these requests."""

    max_steps: int = Field(default=5, ge=1, le=20)
    """Maximum number of steps in one plan."""
    rounds: int = Field(default=1, ge=1, le=5)
    """Maximum number of plans per request. After each plan except the last one, the conductor reads the
    answer, and either accepts it or writes a new plan."""
    depth: int = Field(default=0, ge=0, le=3)
    """Maximum depth of nested plans. At 1 or more, a step may call the whole pool as if it were one worker,
    and the conductor writes a plan for that step. At 0, plans are never nested."""
    workers: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Workers that plans may use. If null, plans may use the whole pool."""
    deadline_s: float | None = Field(default=None, gt=0)
    """Time limit of a request in seconds. If null, `limits.default_deadline_s` applies."""
    on_step_failure: OnFailure = "fail"
    """What Podium does if a step and all its fallbacks fail, and other steps read the output of this step.
    With `fail`, the run ends. With `skip`, the run continues, and the other steps get a note that the output
    is missing. The step that writes the answer is never skipped."""
    max_cost_usd: Decimal | None = Field(default=None, gt=0)
    """Maximum cost of a request in US dollars. Before each call, Podium reserves the maximum cost of the
    call. If null, there is no limit."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Maximum number of tokens that all calls of a request may use together. Before each call, Podium
    reserves the most tokens that the call can use. If null, there is no limit."""


class StepSettings(Frozen):
    """Step of a fixed workflow."""

    worker: str
    """Worker that runs the step."""
    subtask: str = ""
    """Instruction for the worker. If empty, the worker gets the user's question unchanged."""
    access: tuple[int, ...] | Literal["all"] = ()
    """Earlier steps whose outputs the step reads. Write their numbers, counted from 0, or `all` for every
    earlier step."""
    tools: bool = True
    """Let the step call the tools that the request offers."""
    on_failure: OnFailure | None = None
    """What Podium does if the step fails: `fail` or `skip`. If null, the request's `podium.on_step_failure`
    decides."""


class PromptSettings(Frozen):
    """Texts that replace the built-in prompts (`conductor/plan/prompts.py`). A text may contain
    `{max_steps}`, which Podium replaces by the maximum number of steps. If a field is null, Podium uses the
    built-in text.
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
    """Maximum size of a request body in bytes, including images. A request with a larger body gets a 413."""
    max_text_bytes: int = Field(default=4_000_000, gt=0)
    """Maximum size of the text of a request in bytes, not counting images and files. A request with a longer
    text gets a 413. The default is about a million tokens of English, which is more than most models can
    read."""
    max_running: int = Field(default=2048, ge=1)
    """Maximum number of concurrent requests. A request counts towards this limit until the end of its run is
    written to the store, even if the store is unavailable for a while. Further requests get a 429 with
    `Retry-After`."""
    max_running_bytes: int = Field(default=256_000_000, ge=1)
    """Maximum total size, in bytes, of the conversations of running requests, with their images and files in
    base64. A finished run counts until its record is written to the store. Further requests get a 429 with
    `Retry-After`, except for requests of up to 64 kB and a request that arrives while no other request is
    running. The process needs two to three times as much memory as you set here."""
    max_reads: int = Field(default=1024, ge=8)
    """Maximum number of concurrent reads of lists, records, files and event streams. A read counts until its
    client has received the whole answer. One key may use a quarter of this number, and one team may use half
    of it. Further reads get a 429 with `Retry-After`. Requests that change something, for example to cancel a
    run, have a separate limit, which is a quarter of this one."""
    max_unread_bytes: int = Field(default=256_000_000, ge=1_000_000)
    """Maximum total size, in bytes, of the answers to reads that clients have not yet received completely. A
    file download counts as 1 MB, and an event stream counts as 0.4 MB. A record or a list of more than 64 kB
    counts with its full size. One key may use a quarter of the limit, and one team may use half of it.
    Further reads get a 429 with `Retry-After`."""
    default_deadline_s: float = Field(default=600.0, gt=0)
    """Time limit of a request in seconds, if neither the request nor its model sets one."""
    heartbeat_s: float = Field(default=10.0, gt=0)
    """Longest time, in seconds, for which a stream may send nothing. After this time, Podium sends a comment,
    so that proxies keep the connection open."""
    unread_s: float = Field(default=60.0, gt=0)
    """Maximum time, in seconds, for which a client may read nothing while more of its answer is ready. After
    this time, Podium ends the answer and its run, because they occupy a worker's slot or memory. The time
    starts again whenever the client reads something. Behind HAProxy, Podium notices only about once every 100
    kB that the client reads something."""
    first_byte_s: float = Field(default=0.1, ge=0)
    """Time, in seconds, for which a stream waits before it sends its first byte. If the request fails within
    this time, the response can still have the HTTP status of the error."""
    records: int = Field(default=1000, ge=1)
    """Maximum number of runs that a replica keeps in memory for `GET /v1/workflows` if `store.records` is
    false. Above the limit, Podium drops the oldest run of the key that has the most runs. The same limit
    applies to the values of `Idempotency-Key` that a replica remembers, and to finished runs whose records
    wait to be written while the store is unavailable."""
    records_bytes: int = Field(default=64_000_000, ge=1)
    """Maximum total size, in bytes, of the runs that `records` counts. Above the limit, Podium drops the
    oldest run of the key whose runs take the most memory. It keeps the newest run, whatever its size."""


class HttpSettings(Frozen):
    """Accepted hosts and origins, and limits for slow clients (`serving/edge`). Podium reads these settings
    only when the server starts, so a new `user_config` of Serve does not change them.
    """

    hosts: tuple[str, ...] | None = None
    """Names that Podium accepts in the `Host` header, such as `podium.example.com`. It always accepts the
    names of the loopback interface. `["*"]` accepts any name. If null, a server that listens on loopback accepts
    only loopback names, and any other server accepts any name."""
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
    """Maximum total size of a request's headers in bytes. A request with larger headers gets a 431. The same
    limit applies to the trailers and the chunk extensions of a body."""
    header_s: float = Field(default=10.0, gt=0)
    """Maximum time, in seconds, for a new connection to send the headers of its first request. After this
    time, Podium closes the connection."""
    stall_s: float = Field(default=10.0, gt=0)
    """Maximum pause between two pieces of a request body, in seconds. After a longer pause, the request gets
    a 408."""
    body_s: float = Field(default=60.0, gt=0)
    """Maximum time for receiving a whole request body, in seconds. A slower request gets a 408."""
    max_waiting: int = Field(default=4096, ge=16)
    """Maximum number of connections and request bodies that have not arrived completely. Above the limit,
    Podium closes the oldest connection of the client address that has the most of them."""
    max_unfinished_bytes: int = Field(default=256_000_000, ge=1_000_000)
    """Maximum total size, in bytes, of request bodies that have not arrived completely."""


class RouterSettings(Scaling):
    """Number and size of the router replicas, which answer HTTP requests."""

    min_replicas: int = Field(default=1, ge=1)
    """Minimum number of replicas."""
    target_ongoing_requests: float = Field(default=1000, gt=0)
    """Target number of concurrent requests per replica."""
    max_ongoing_requests: int = Field(default=4096, ge=1)
    """Maximum number of concurrent requests that are sent to one replica. Further requests wait until one
    ends. A sixteenth of the limit is reserved for health probes. When the rest is in use, the replica rejects
    further requests with a 429, and first those whose bodies are incomplete."""
    target_calls: float = Field(default=500, gt=0)
    """Target number of concurrent model calls per replica, including calls that wait for a slot."""
    num_cpus: float = Field(default=0.5, ge=0)
    """Logical CPUs per replica, as Ray counts them."""


Variable = Annotated[str, AfterValidator(check_variable)]


class StoreSettings(Frozen):
    """Storage of keys, budgets, the ledger and the records of runs. Podium creates the database when it first
    stores one of these. It reads these settings when the server starts.
    """

    url_env: Variable = "PODIUM_STORE_URL"
    """Name of the environment variable that holds the address of the database, such as
    `postgresql://USER:PASSWORD@HOST/DATABASE`. If the variable is not set, Podium uses a SQLite file. Routers
    on several nodes need PostgreSQL."""
    redis_url_env: Variable = "PODIUM_REDIS_URL"
    """Name of the environment variable that holds the address of a Redis server, such as
    `redis://:PASSWORD@HOST:6379/0`. If the variable is set, Redis counts the requests and tokens per minute
    of all routers together. Otherwise, each router counts only its own."""
    path: Path | None = None
    """SQLite file to use instead of the default one. It must be on a local disk. A relative path starts at
    the folder of the settings file. If null, the file is `podium/podium.db` in `$XDG_DATA_HOME`, or in
    `~/.local/share` if that variable is not set."""
    records: bool = True
    """Store the records and events of runs in the database. If false, the newest runs stay in the memory of
    the replica that executed them, and are lost when that replica ends."""
    when_away: Literal["refuse", "serve"] = "refuse"
    """What Podium does with calls to workers that have a price, while the database is unavailable or its disk
    is full. With `refuse`, Podium rejects these calls with a 503. With `serve`, Podium makes the calls
    without checking budgets, and logs each of them. When the database is available again, the router enters
    these calls in the ledger, unless it has ended before. With `serve`, keys also remain valid if a router
    has verified them within the last hour."""
    keep_s: float = Field(default=3600.0, gt=0)
    """Maximum time, in seconds, for which a run continues after its client has disconnected. It applies to
    runs with an `Idempotency-Key`, `podium.keep` or `podium.background`. Podium remembers the
    `Idempotency-Key` itself for 24 hours."""
    asked_again_s: float = Field(default=60.0, ge=0)
    """Time, in seconds, in which a retried request joins the original run instead of starting a new one, so
    that the client does not pay twice. A retry joins if a model was called and the answer then failed or was
    cut off. During this time, the original run continues without its client. This applies to Responses, to
    Messages and to requests that offer tools. At 0, a retried request always starts a new run."""
    tools_wait_s: float = Field(default=86_400.0, gt=0)
    """Maximum time, in seconds, for which a run waits for the results of its client's tools. Meanwhile,
    Podium stores the texts of the run unchanged, because providers check that the turns of their models come
    back unchanged. A run never waits longer than texts may be stored (`content_days`, here or in a policy).
    """
    waiting_bytes_per_team: int | None = Field(default=1_000_000_000, ge=0)
    """Maximum total size, in bytes, of the runs of one team that wait for tool results. Above the limit, the
    oldest of these runs end with the status `expired`. If null, there is no limit."""
    content_days: float | None = Field(default=30.0, gt=0)
    """Days until Podium deletes the texts of a run: its prompts, outputs and events. Podium keeps the numbers
    of the run, such as its tokens and costs. If null, Podium keeps the texts as long as the numbers."""
    numbers_days: float | None = Field(default=400.0, gt=0)
    """Days until Podium deletes the whole record of a run with its numbers: tokens, cost, times and workers.
    The entries in the ledger remain. If null, records are never deleted."""
    content_bytes_per_team: int | None = Field(default=5_000_000_000, ge=0)
    """Maximum total stored size, in bytes, of the texts of one team's runs. Above the limit, Podium deletes
    the oldest texts. If null, there is no limit."""


class CacheSettings(Frozen):
    """Cache of answers to identical requests of the same team. A cached answer calls no model and costs
    nothing. A request with `podium: {cache: false}` does not use the cache.
    """

    keep_s: float | None = Field(default=None, gt=0)
    """Time, in seconds, for which Podium reuses an answer. If null, the cache is off."""
    teams: tuple[str, ...] | None = None
    """Ids of the teams that use the cache. If null, all teams use it. Each key without a team has its own
    cache. If the server requires no keys, all requests without a key share a cache."""


class ConversationSettings(Frozen):
    """How Podium handles the turns of one conversation. The turns share a long prefix, which providers bill
    at a tenth of the price if they have cached it. Podium therefore prefers the worker, the deployment and
    the replica that answered the previous turn.
    """

    stickiness: float = Field(default=0.5, ge=0)
    """How strongly Podium prefers the worker that answered the previous turn. If the conductor chooses
    another worker, that worker must read the conversation again without a cache. Podium keeps the earlier
    worker if the cost of this reading, multiplied by `stickiness`, is higher than the expected gain. At 0,
    the conductor alone decides, except that the earlier worker answers if the conversation ends with tool
    results."""
    speculation_usd_per_s: Decimal | None = Field(default=Decimal("0.01"), ge=0)
    """Value of a second of waiting, in US dollars. While the conductor is still planning, Podium can already
    call the worker that answered the previous turn. It does this if the expected cost of unnecessary calls is
    lower than the value of the time that they save. Such early calls use at most half of the worker's slots
    (`max_concurrency`), so that they do not delay other calls of a busy worker. If null, Podium never calls
    the worker early."""
    keep_s: float = Field(default=3600.0, gt=0, le=86_400)
    """Minimum time, in seconds, for which Podium remembers after each turn which worker answered. If the
    provider's cache lasts longer, for example with `prompt_cache_retention: 24h`, Podium remembers for as long."""
    breakpoints: bool = True
    """Set breakpoints for Anthropic's prompt cache in requests that have none. Podium sets them only if the
    prompt is long enough and will probably be sent again. If false, Claude models cache only up to the
    client's own breakpoints, and Podium expects no other cache."""
    cache_lifetime: Literal["auto", "5m", "1h"] = "auto"
    """Lifetime of the cache at these breakpoints. A lifetime of an hour costs more to write than five
    minutes. With `auto`, the lifetime becomes an hour once more than four minutes have passed between two
    turns of the conversation. It becomes five minutes again after ten user turns in a row without such a
    pause. If a request names a worker or a workflow as its `model`, or contains a plan, `auto` is always five
    minutes, because Podium remembers only the conversations that a conductor plans."""


class BaselineSettings(Frozen):
    """Model with which Podium compares costs. `GET /v1/costs` and `podium costs` estimate what the same
    answers would have cost with this model. You can write `baseline: gpt-5` as a short form of `baseline:
    {model: gpt-5}`.
    """

    model: str = Field(min_length=1)
    """Name of a worker, or of a model in the price table that ships with Podium."""
    price: PriceSettings | None = None
    """Price of the model's tokens. If null, it is the price of the worker with this name, or the price in the
    table."""


class BatchSettings(Frozen):
    """Files (`/v1/files`) and batches (`/v1/batches`), for requests that are not urgent."""

    max_file_bytes: int = Field(default=50_000_000, ge=1000)
    """Maximum size of a file in bytes. A larger file gets a 413. Podium reads the limit for uploads when the
    server starts."""
    max_lines: int = Field(default=50_000, ge=1)
    """Maximum number of lines in a file of requests, including empty lines. A file with more lines gets a
    413. Each line is one request, and `limits.max_body_bytes` and `limits.max_text_bytes` apply to it."""
    max_bytes_per_team: int = Field(default=1_000_000_000, ge=1000)
    """Maximum total size of the files of one team in bytes. Podium rejects further files."""
    file_days: float = Field(default=30.0, gt=0)
    """Days until Podium deletes files and batches. If `store.content_days` or the `content_days` of a policy
    is shorter, the shorter time applies."""
    max_open_per_team: int = Field(default=100, ge=1)
    """Maximum number of unfinished batches of one team. Further batches get a 429."""
    at_once: int = Field(default=4, ge=1)
    """Maximum number of concurrent batches in one router replica. The replica holds about 4 MB of the file
    of each of these batches in memory. Further batches wait, and the keys take turns."""
    lines_at_once: int = Field(default=8, ge=1)
    """Maximum number of concurrent lines in one router replica, over all batches."""
    room: float = Field(default=0.5, gt=0, le=1)
    """Share of `limits.max_running` that batches and requests with `service_tier: flex` may use. The rest is
    reserved for interactive requests. Above the share, the lines of batches wait, and flex requests get a 429
    with `Retry-After`."""


class TelemetrySettings(Frozen):
    """Contents of traces. The standard variables `OTEL_EXPORTER_OTLP_*` decide where Podium sends spans."""

    content: bool = False
    """Include prompts and outputs in spans. Spans then also contain error messages of providers, which may
    quote a prompt."""
    service_prefix: str = "podium"
    """Prefix of service names in traces. With the default, the names are `podium-router`, and
    `podium-<worker>` for each worker."""
