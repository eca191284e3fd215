"""Settings of a worker: its kind, and the fields of that kind.

Unknown keys are rejected. Keys of providers are only named (`api_key_env`, `api_key_file`), never written
here.
"""

from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, ValidationInfo, field_validator, model_validator

from conductor.model.operation import Operation
from serving.lora.adapters import AdapterError, name_of
from serving.settings.accepts import Accepts
from serving.settings.access import Effort, Frozen, ModelAccess, check_access
from serving.settings.fakes import ScriptedCallSettings as ScriptedCallSettings
from serving.settings.fakes import ScriptedReplySettings, StandInSettings
from serving.settings.named_fallbacks import check_fallbacks
from serving.settings.prices import PriceSettings
from serving.settings.scale import Scale

NAME = r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,99}$"


class RetrySettings(Frozen):
    """Retries of a call before its first token, and the waits between them."""

    attempts: int = Field(default=3, ge=1, le=10)
    """Maximum number of attempts, the first one included."""
    first_wait_s: float = Field(default=0.25, gt=0)
    """Upper bound of the first wait in seconds. It doubles with each attempt. The wait itself is random, up
    to the bound."""
    max_wait_s: float = Field(default=8.0, gt=0)
    """Upper bound of every wait in seconds. If a `Retry-After` is longer, the call is not retried: it goes to
    a fallback, or fails."""
    fallback_wait_s: float = Field(default=3.0, ge=0)
    """Maximum total time in seconds that a call waits for `Retry-After` while a fallback could answer,
    because the client asked for this worker. If the server asks for more, or for more than half of the
    request's remaining time, the fallback answers immediately. 0: it always does."""
    share: float = Field(default=0.2, ge=0, le=1)
    """Maximum share of retries in the worker's calls from one router replica. In addition, 10 retries are
    available at the start; for an engine with several replicas, as many as one replica has calls
    (`scale.max_ongoing_requests`), because all of these fail when it is lost. Beyond that, failed calls are
    not retried."""


class _WorkerBase(Frozen):
    """Fields of every worker, in addition to its `kind`: `vllm`, `openai`, `anthropic`, `gemini`, `python` or
    `scripted`.
    """

    name: str = Field(pattern=NAME)
    """Name of the worker in plans, in records and as `model` in requests."""
    card: str = ""
    """Description of what the worker is good at, which the conductor reads, such as `Strong at mathematics
    and code.`"""
    in_pool: bool = True
    """Let plans use the worker. A conductor usually should not be in its own pool."""
    price: PriceSettings | None = None
    """Price of its tokens. If null: free for kinds `vllm` and `scripted`; for a provider's model, the price
    in the table that ships with Podium, looked up by the model's name and endpoint when the settings are
    read. Requests with a cost limit and keys with a budget cannot use a worker whose price is unknown."""
    max_concurrency: int = Field(default=64, ge=1)
    """Maximum number of concurrent calls from one router replica; more wait for a slot."""
    adaptive_concurrency: bool = True
    """Allow fewer concurrent calls, down to 1, while the worker reports that it is busy, or while its first
    tokens take twice as long as at best and fewer calls make them faster. If false, always `max_concurrency`.
    """
    max_wait_s: float = Field(default=60.0, gt=0)
    """Approximate maximum wait for a slot, in seconds, estimated from the queue and the pace of recent calls.
    If the wait would be longer, a fallback is called. Without one, a request that would start with this
    worker gets 429 with `Retry-After`, and so does an admitted request whose first call has waited this long.
    Batches, and runs that have already made a call, wait without a limit."""
    max_output_tokens: int = Field(default=4096, ge=1)
    """Maximum length of an answer in tokens, thoughts included. As much is reserved of a budget before a
    call."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature if a request sets none. If null, the model's own default."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling (`top_p`) if a request sets none. If null, the model's own default."""
    effort: Effort | None = None
    """Reasoning effort if a request sets none: `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`.
    A model gets the nearest level that it accepts. The conductor always uses this value or its own `effort`:
    a request's `reasoning_effort` applies only to the steps."""
    system_prompt: str = ""
    """System prompt of its calls."""
    sees_images: bool = False
    """Send images to the worker. Set it only if the model accepts images."""
    reads_pdfs: bool | None = None
    """Send PDF files to the worker. If null: what is known of its kind and model; an unknown model, or a
    server behind a `base_url`, gets none. A vllm worker never does. Every worker gets text files."""
    calls_tools: bool | None = None
    """Offer the client's tools to the worker. If null: what is known of its kind and model; an unknown model
    gets them. A vllm worker also needs `tool_call_parser` in its `engine`."""
    context_tokens: int | None = Field(default=None, ge=1)
    """Maximum length of prompt and answer together, in tokens, shown to the conductor. If null, a vllm worker
    uses `max_model_len` of its engine."""
    tokens_per_s: float | None = Field(default=None, gt=0)
    """Approximate speed in tokens per second, shown to the conductor. A scripted worker writes at this speed."""
    fallbacks: tuple[str, ...] | Literal["auto"] = ()
    """Workers that are called in turn if this one fails before its first token, each named once. `auto`: up
    to three workers of the pool with at least the same abilities and at most twice the price. Those with the
    most similar `card` come first, the cheaper one of similar cards; then those with the nearest price."""
    on_content_filter: Literal["fall_back", "tell"] = "tell"
    """Action if its provider rejects a prompt because of its content. `tell`: return 400 `content_filter` to
    the client. `fall_back`: call the fallbacks, as for any failure. A prompt that one provider rejects is
    sent to another only with `fall_back`."""
    on_broken_stream: Literal["continue", "tell"] = "continue"
    """Action if an answer breaks off after its client has received part of it. `continue`: the worker or a
    fallback continues it from there. `tell`: the client gets an error."""
    retry: RetrySettings = RetrySettings()
    """Retries of its calls."""
    hedge: bool | None = None
    """Send a call a second time (hedge it) if its first token is later than for 95 % of recent calls. At most
    5 % of the calls are hedged, and only while half of the slots are free. The second call goes to another
    deployment or replica; if there is no other, none is sent. A worker with one address gets it at that
    address. The first to send a token answers. The other is closed, and is charged the most that it can have
    cost. If null: true if its tokens are free and it has several deployments or replicas."""
    optional: bool = False
    """Drop the worker with a warning if its key is not set, instead of failing at the start."""
    provider: str | None = None
    """Provider's name in the policies of teams and keys. If null, its kind, such as `openai`."""
    region: str | None = None
    """Region's name in policies, such as `eu` or `eu-central-1`. If null, unknown: a policy that names
    regions excludes the worker."""
    local: bool | None = None
    """Treat the worker as local for policies with `local_only`: its prompts stay on your own machines. If
    null: true for kinds `vllm` and `scripted` and for a `base_url` on this machine, otherwise false."""

    @field_validator("fallbacks", mode="before")
    @classmethod
    def _check_fallbacks(cls, value: object, info: ValidationInfo) -> object:
        check_fallbacks(value, info.data.get("name", ""))
        return value

    @property
    def named_fallbacks(self) -> tuple[str, ...]:
        """Fallbacks that the settings name; none with `auto`."""
        return () if self.fallbacks == "auto" else self.fallbacks


Serves = Annotated[tuple[Operation, ...], Field(min_length=1)]


class VllmSettings(_WorkerBase):
    """Model on your own machines. Workers with the same `deployment` share one engine."""

    kind: Literal["vllm"]
    model: str
    """Model folder, or name on a hub. Not needed with `deployment`."""
    like: str | None = None
    """Public name of the model, such as `Qwen2.5-1.5B-Instruct`, if `model` is a folder. A conductor with the
    built-in prompt is shown this name."""
    deployment: str | None = Field(default=None, pattern=NAME)
    """Name of another vllm worker whose engine also serves this one. The model, `engine` and `scale` are then
    those of that worker."""
    engine: dict[str, Any] = Field(default_factory=dict)
    """Engine arguments of vLLM, under vLLM's names, such as `max_model_len: 8192`, and two of Podium's:
    `chat_template_kwargs`, and `tool_call_parser`, the parser for the model's tool calls, such as `hermes`.
    Without a parser the worker makes no tool calls."""
    adapter: str | None = None
    """LoRA adapter for this worker's calls: a folder, or an address in an object store (`s3://`, `gs://`,
    `abfss://`), that ends in a name such as `conductor@1a2b3c4d`; see `serving.lora.adapters`."""
    scale: Scale = Scale()
    """Number and size of the engine's replicas."""
    serves: Annotated[tuple[Literal["chat", "text_completion"], ...], Field(min_length=1)] = (
        "chat",
        "text_completion",
    )
    """Operations that it serves: `chat`, and `text_completion` (`/v1/completions`, with the prompt
    unchanged)."""
    stall_timeout_s: float | None = Field(default=None, gt=0)
    """Maximum time between two tokens, in seconds. Then the call fails, and the engine aborts it. If null:
    120, or 600 for requests of the priority `batch`, which yield to all others. In the middle of an answer
    that another free worker could continue: four times the p99 of the longest pauses in recent answers, at
    least 20, once 20 are known; not for `batch`."""
    first_token_timeout_s: float | None = Field(default=None, gt=0)
    """Maximum time until the first token, in seconds, including the engine's queue. Time in which no replica
    is up and one is being started does not count. If null: `stall_timeout_s` if that is set, otherwise 300
    (`batch`: 600). If a free fallback could answer and the priority is not `batch`: four times the p99 of
    recent calls, at least 10; 13 until 20 calls are known, and 30 while its calls fail. Always at most half
    of the request's remaining time while another worker is free."""
    stand_in: StandInSettings | None = None
    """Use a fake engine instead of vLLM, to try scaling and routing without a model."""

    @field_validator("adapter")
    @classmethod
    def _check_name(cls, adapter: str | None) -> str | None:
        try:
            if adapter is not None:
                name_of(adapter)
        except AdapterError as exc:
            raise ValueError(exc.message) from exc
        return adapter

    @model_validator(mode="before")
    @classmethod
    def _check_sharing(cls, data: Any) -> Any:
        if isinstance(data, dict) and "deployment" in data:
            fields = cast(dict[str, Any], data)
            own = sorted({"engine", "scale"} & fields.keys())
            if own:
                raise ValueError(
                    f"has both `deployment` and `{own[0]}`; set `{own[0]}` at the worker that owns the engine"
                )
            return {"model": "", **fields}
        return cast(Any, data)


class DeploymentSettings(ModelAccess):
    """Place where a worker's model is reached: an account, a region or a server. Its fields replace those of
    the worker. A deployment with a `base_url` or a `service` uses none of the worker's access fields, so that
    no key is sent to another server.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$")
    """Name of the deployment in records, spans and logs."""
    weight: float = Field(default=1.0, gt=0, le=1_000_000)
    """Share of the worker's calls, relative to the weights of the other deployments."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    """Maximum number of calls per minute from one router replica. Beyond that, the other deployments are
    used. If null, no limit."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Maximum number of tokens per minute from one router replica, prompts and answers together. Beyond that,
    the other deployments are used. If null, no limit."""
    max_concurrency: int | None = Field(default=None, ge=1)
    """Maximum number of concurrent calls from one router replica. Beyond that, the other deployments are used
    first. If null, the worker's value, which in any case limits all of them together."""
    model: str | None = None
    """Model's name at the deployment. If null, the worker's."""
    price: PriceSettings | None = None
    """Price of its tokens at the deployment. If null, the worker's; else what the price table has for the
    deployment."""
    provider: str | None = None
    """Provider's name in policies. If null, the worker's, or its kind if the deployment has a `base_url` or
    `service`."""
    local: bool | None = None
    """Treat the deployment as local: its prompts stay on your own machines. If null, as for the worker; with
    a `base_url` or `service`, whether that address is on this machine."""


class _ApiSettings(ModelAccess, _WorkerBase):
    """Model behind a provider's API. The kind is the API, not the provider: kind `openai` also fits other
    servers with OpenAI's Chat Completions.
    """

    model: str
    """Provider's name of the model, such as `gpt-5`, or the name of an Azure deployment."""
    like: str | None = None
    """Public name of the model, such as `gpt-5`, if `model` names a deployment. Accepted parameters and
    prices are looked up by this name."""
    accepts: Accepts = Accepts()
    """What the model accepts in a call. These fields take precedence over what is known of the model by its
    name. Parameters that it does not accept are not sent, and the record notes them."""
    deployments: tuple[DeploymentSettings, ...] = ()
    """Places where the same model is reached, instead of the worker's own. Each call goes to one of them,
    drawn by weight among those that are healthy and have a free slot. If it fails there before its first
    token, it goes to the next."""
    stall_timeout_s: float | None = Field(default=None, gt=0)
    """Maximum time between two pieces of an answer, in seconds. Comments, pings and headers do not count as
    pieces. If null: 120, or 600 if the model is known to think at the call's effort. In the middle of an
    answer that another free worker could continue, if the model does not think: four times the p99 of the
    longest pauses in recent answers, at least 20, once 20 are known. A model that had begun to answer is not
    called again: that call is probably billed, and a fallback may still answer."""
    first_token_timeout_s: float | None = Field(default=None, gt=0)
    """Maximum time until the first piece of an answer, in seconds; what counts is as for `stall_timeout_s`.
    If null: as `stall_timeout_s`. If a free fallback or deployment could answer and the model does not think
    at the call's effort: four times the p99 of recent calls, at least 10; 13 until 20 calls are known, and 30
    while its calls fail. Always at most half of the request's remaining time while another one is free."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """Maximum time for opening a connection, and for looking up its host name, in seconds."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Extra fields for the body of every call, for features of a server that Podium has no setting for."""
    allow_link_local: bool = False
    """Allow `base_url` to point to a link-local address or to a cloud's metadata service. Loopback and
    private addresses are allowed without it."""
    fetches_pictures: bool | None = None
    """Pass image URLs of a request to the server. It fetches them from inside its own network, and callers
    choose them. If null: only to a server at a public address. Other servers accept only images sent as
    `data:`."""

    def at(self, deployment: DeploymentSettings) -> Self:
        """Return the settings of this worker at one of its deployments."""
        own = {name: getattr(deployment, name) for name in (*ModelAccess.model_fields, *PLACE_FIELDS)}
        is_elsewhere = deployment.service is not None or deployment.base_url is not None
        has_key = deployment.api_key_env is not None or deployment.api_key_file is not None
        from_deployment = {
            *((*ModelAccess.model_fields, "provider", "local") if is_elsewhere else ()),
            *(("api_key_env", "api_key_file") if has_key else ()),
        }
        replaced = {
            name: value for name, value in own.items() if value is not None or name in from_deployment
        }
        return self.model_copy(update={**replaced, "like": self.like or self.model, "deployments": ()})

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        kind = str(getattr(self, "kind", ""))
        names = [each.name for each in self.deployments]
        for each in self.deployments:
            if names.count(each.name) > 1:
                raise ValueError(f"two deployments are called {each.name!r}")
            try:
                check_access(kind, self.at(each))
            except ValueError as exc:
                raise ValueError(f"deployment {each.name!r}: {exc}") from exc
        if not self.deployments:
            check_access(kind, self)
        return self


PLACE_FIELDS = ("model", "price", "max_concurrency", "provider", "local")
"""Fields of a worker, in addition to its access fields, that a deployment may set."""


class OpenAISettings(_ApiSettings):
    """OpenAI, or any server that implements its Chat Completions (`base_url`)."""

    kind: Literal["openai"]
    api: Literal["chat", "responses"] = "chat"
    """OpenAI API for chats: `chat` (`/v1/chat/completions`), which most servers have, or `responses`
    (`/v1/responses`), which keeps a model's thoughts across its tool calls."""
    serves: Serves = ("chat",)
    """Operations that the server offers: `chat`, `text_completion` (`/v1/completions`), `embeddings`
    (`/v1/embeddings`). Plans cannot use a worker without `chat`."""


class AnthropicSettings(_ApiSettings):
    """Anthropic's Messages API."""

    kind: Literal["anthropic"]


class GeminiSettings(_ApiSettings):
    """Google's Gemini API."""

    kind: Literal["gemini"]


class ScriptedSettings(_WorkerBase):
    """Fake that answers from a script, for tests, benchmarks and demos."""

    kind: Literal["scripted"]
    replies: tuple[str | ScriptedReplySettings, ...] = ("",)
    """Replies, used in turn and then again from the first. `{question}` is replaced by the text of the user's
    last message."""
    serves: Serves = ("chat", "text_completion")
    """Operations that it serves: `chat`, `text_completion`, `embeddings`. Its embeddings are derived from a
    checksum of the text and mean nothing. Plans cannot use a worker without `chat`."""
    delay_s: float = Field(default=0.0, ge=0)
    """Time to first token, in seconds. After that it writes at `tokens_per_s`, or without pauses if that is
    null."""
    retry: RetrySettings = RetrySettings()


class PythonSettings(_WorkerBase):
    """Worker that you write in Python; see `serving.workers.plugin`. Podium ships seven, such as a
    calculator and a vote: docs/operations/program-workers.md.
    """

    kind: Literal["python"]
    factory: str = Field(pattern=r"^[\w.]+:\w+$")
    """Factory of the worker: `package.module:callable`, importable by the router's process."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the factory."""
    stall_timeout_s: float | None = Field(default=None, gt=0)
    """Maximum time between two pieces of an answer, in seconds. Then the call fails and is closed. If null,
    no limit."""
    first_token_timeout_s: float | None = Field(default=None, gt=0)
    """Maximum time until the first piece of an answer, in seconds. If null, as `stall_timeout_s`. Always at
    most half of the request's remaining time while another worker is free."""


WorkerSettings = Annotated[
    VllmSettings | OpenAISettings | AnthropicSettings | GeminiSettings | ScriptedSettings | PythonSettings,
    Field(discriminator="kind"),
]
Kind = Literal["vllm", "openai", "anthropic", "gemini", "scripted", "python"]
ApiSettings = OpenAISettings | AnthropicSettings | GeminiSettings
API_SETTINGS = (OpenAISettings, AnthropicSettings, GeminiSettings)
"""Kinds of workers whose API key is named in the settings."""


def chats(worker: WorkerSettings) -> bool:
    """Return whether the worker serves chats. Plans and fallbacks cannot use one that does not; clients call
    it by name.
    """
    return "chat" in getattr(worker, "serves", ("chat",))


def places_of(worker: WorkerSettings) -> dict[str, WorkerSettings]:
    """Return the worker's settings at each of its deployments, by `WORKER@DEPLOYMENT`. A worker without
    deployments is returned by its own name.
    """
    if not isinstance(worker, API_SETTINGS) or not worker.deployments:
        return {worker.name: worker}
    return {f"{worker.name}@{each.name}": worker.at(each) for each in worker.deployments}
