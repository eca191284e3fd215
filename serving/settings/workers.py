"""Settings of a worker: its kind, and the fields of that kind. `worker_base.py` has those of every kind.

Unknown keys are rejected. Keys of providers are only named (`api_key_env`, `api_key_file`), never written
here.
"""

from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, field_validator, model_validator

from conductor.model.operation import Operation
from conductor.model.reply import FinishReason
from serving.lora.adapters import AdapterError, name_of
from serving.settings.known_models import Accepts
from serving.settings.model_access import USUAL_KEYS, Frozen, ModelAccess, check_access
from serving.settings.scale import Scale
from serving.settings.worker_base import NAME, PriceSettings, RetrySettings, WorkerBase


class StandInSettings(Frozen):
    """Fake engine with the timing of a real engine. See `serving.deployments.fake_engine.FakeEngine`."""

    start_s: float = Field(default=0.0, ge=0)
    """Time for loading the weights, in seconds."""
    first_token_s: float = Field(default=0.05, ge=0)
    """Time to the first token, in seconds."""
    tokens_per_s: float = Field(default=50.0, gt=0)
    """Decoding speed of one answer, in tokens per second."""
    slots: int = Field(default=16, ge=1)
    """Maximum number of concurrent answers. Further requests wait, as in vLLM's queue."""
    answer_tokens: int = Field(default=64, ge=1)
    """Length of an answer in tokens."""


class ScriptedCallSettings(Frozen):
    """Call of one of the client's tools."""

    name: str
    """Name of the tool. If the request does not offer this tool, the call is dropped."""
    arguments: dict[str, Any] | str = Field(default_factory=dict[str, Any])
    """Arguments of the call. Use keys and values for a function, and a text for a custom tool."""


class ScriptedReplySettings(Frozen):
    """Reply of a scripted worker. See `serving.workers.scripted.ScriptedReply`."""

    text: str = ""
    """Text of the answer. `{question}` is replaced by the text of the user's last message, and `{results}` by
    the latest tool results."""
    reasoning: str = ""
    """Thoughts that are sent before the answer."""
    calls: tuple[ScriptedCallSettings, ...] = ()
    """Tool calls that the worker makes after the text, all in the same answer. When the client sends the tool
    results, the worker answers with the next reply. A script with tool calls starts again for each
    conversation. If a request offers no tools, replies with tool calls are skipped."""
    error: Literal["busy", "unavailable", "refused", "overflow"] | None = None
    """Error that the reply raises instead of answering. If `fail_after_tokens` is set, the reply sends this
    many tokens before it fails."""
    retry_after_s: float | None = None
    """Number of seconds that the error has as its `Retry-After`."""
    fail_after_tokens: int | None = None
    """Number of tokens after which the reply fails. If `error` is not set, the error is `unavailable`."""
    stall_after_tokens: int | None = None
    """Number of tokens after which the reply stops sending and stays open."""
    finish: FinishReason = FinishReason.STOP
    """Finish reason of the answer."""


Serves = Annotated[tuple[Operation, ...], Field(min_length=1)]


class VllmSettings(WorkerBase):
    """Model that runs on your own machines, with vLLM as its engine. With `deployment`, several workers can
    share one engine.
    """

    kind: Literal["vllm"]
    model: str
    """Folder of the model, or its name on a hub. Omit this field if you set `deployment`."""
    like: str | None = None
    """Public name of the model, such as `Qwen2.5-1.5B-Instruct`, if `model` is a folder. The built-in prompt
    shows this name to the conductor."""
    deployment: str | None = Field(default=None, pattern=NAME)
    """Name of another `vllm` worker whose engine also serves this worker. The `model`, `engine` and `scale`
    of that worker then apply."""
    engine: dict[str, Any] = Field(default_factory=dict)
    """Engine arguments of vLLM, under vLLM's names, such as `max_model_len: 8192`. Podium also accepts two
    arguments of its own. `chat_template_kwargs` contains arguments for the model's chat template.
    `tool_call_parser` is the name of vLLM's parser for the model's tool calls, such as `hermes`. Without a
    parser, the worker makes no tool calls."""
    adapter: str | None = None
    """LoRA adapter for this worker's calls. The value is a folder, or an address in an object store (`s3://`,
    `gs://` or `abfss://`). It must end in a name with a digest, such as `conductor@1a2b3c4d`. See
    `serving.lora.adapters`."""
    scale: Scale = Scale()
    """Number and size of the engine's replicas."""
    serves: Annotated[tuple[Literal["chat", "text_completion"], ...], Field(min_length=1)] = (
        "chat",
        "text_completion",
    )
    """Operations that the worker serves. `chat` is for chats. `text_completion` is for `/v1/completions`, and
    sends the prompt unchanged."""
    whole_sentences: bool = False
    """Whether an answer that reaches its limit of tokens ends with its last complete sentence or line. The text of
    the last quarter of its tokens then arrives by sentences. Tool calls, JSON and code are not affected."""
    stall_timeout_s: float | None = Field(default=None, gt=0)
    """Maximum time between two tokens, in seconds. After this time, the call fails, and the engine aborts it.
    If null, the limit is 120. For requests of the priority `batch`, which yield to all others, it is 600. If
    you set no limit, Podium also applies a limit that it has [learned from recent
    calls](operations/worker-failures.md), but only while another free worker could continue the answer.
    Podium needs 20 answers to learn this limit."""
    first_token_timeout_s: float | None = Field(default=None, gt=0)
    """Maximum time until the first token, in seconds, including the wait in the engine's queue. Podium does
    not count the time while no replica is running and one is starting. If null, the limit is
    `stall_timeout_s`. If `stall_timeout_s` is null too, the limit is 300, or 600 for the priority `batch`. If
    you set no limit, Podium also applies a limit that it has [learned from recent
    calls](operations/worker-failures.md), but only while a fallback is free. Until Podium has seen 20 calls,
    this second limit is 13 seconds. While the worker's calls fail, it is 30 seconds. While another worker is
    free, every limit is at most half of the request's remaining time, even if you set a longer one."""
    stand_in: StandInSettings | None = None
    """Use a fake engine instead of vLLM, to try scaling and routing without a model."""

    @field_validator("adapter")
    @classmethod
    def _check_name(cls, adapter: str | None) -> str | None:
        try:
            if adapter is not None:
                name_of(adapter)
        except AdapterError as exc:
            raise ValueError(exc.message.removesuffix(".")) from exc
        return adapter

    @model_validator(mode="before")
    @classmethod
    def _check_sharing(cls, data: Any) -> Any:
        if isinstance(data, dict) and "deployment" in data:
            fields = cast(dict[str, Any], data)
            own = sorted({"engine", "scale"} & fields.keys())
            if own:
                raise ValueError(
                    f"`deployment` and `{own[0]}` must not both be set. Set `{own[0]}` on the worker that owns the engine"
                )
            return {"model": "", **fields}
        return cast(Any, data)


class DeploymentSettings(ModelAccess):
    """Place where Podium can reach the worker's model, such as an account, a region or a server. The fields
    of a deployment replace those of the worker. If a deployment has a `base_url` or a `service`, Podium does
    not use the worker's address and credentials for it, so that no key is sent to another server.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$")
    """Name of the deployment in records, spans and logs."""
    weight: float = Field(default=1.0, gt=0, le=1_000_000)
    """Share of the worker's calls that this deployment gets, relative to the weights of the other
    deployments."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    """Maximum number of calls per minute from one router replica. Further calls go to the other deployments.
    If null, there is no limit."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Maximum number of tokens per minute from one router replica, counting both prompts and answers. Further
    calls go to the other deployments. If null, there is no limit."""
    max_concurrency: int | None = Field(default=None, ge=1)
    """Maximum number of concurrent calls from one router replica. Further calls go to other deployments
    first. If null, the worker's `max_concurrency` applies. In any case, the worker's `max_concurrency` limits
    the calls to all deployments together."""
    model: str | None = None
    """Name of the model at the deployment. If null, the worker's `model` applies."""
    price: PriceSettings | None = None
    """Price of the tokens at the deployment. If null, the worker's `price` applies. If the worker has no
    price either, Podium looks up the price of the deployment in its price table."""
    provider: str | None = None
    """Name of the provider in policies. If null, the worker's `provider` applies. If the deployment has a
    `base_url` or a `service`, the name is the worker's kind instead."""
    local: bool | None = None
    """Treat the deployment as local for policies with `local_only`. If null, the worker's `local` applies. If
    the deployment has a `base_url` or a `service`, it is local if this address points to this machine."""


class _ApiSettings(ModelAccess, WorkerBase):
    """Model behind a provider's API. The kind stands for the API and not for the provider, so you can use
    kind `openai` for every server that implements OpenAI's Chat Completions.
    """

    model: str
    """Name that the provider gives to the model, such as `gpt-5`, or the name of an Azure deployment."""
    like: str | None = None
    """Public name of the model, such as `gpt-5`, if `model` is the name of a deployment. Podium looks up
    accepted parameters, prices and the rules of the provider's prompt cache by this name."""
    accepts: Accepts = Accepts()
    """Parameters that the model accepts in a call. These fields take precedence over what Podium knows about
    a model of this name. Podium does not send parameters that the model does not accept, and lists them in
    the record."""
    deployments: tuple[DeploymentSettings, ...] = ()
    """Places where Podium can reach the model, instead of the worker's own address. For each call, Podium
    randomly chooses one of the deployments that are healthy and have a free slot, in proportion to their
    `weight`. If the call fails before its first token, Podium tries another deployment."""
    stall_timeout_s: float | None = Field(default=None, gt=0)
    """Maximum time between two pieces of an answer, in seconds. Comments, pings and headers do not count as
    pieces. If null, the limit is 120, or 600 if the model is known to think at the call's effort. If you set
    no limit, Podium also applies a limit that it has [learned from recent
    calls](operations/worker-failures.md), but only while another free worker could continue the answer.
    Podium needs 20 answers to learn this limit. If a model stalls after it has begun to answer, Podium does
    not call it again, because the first call is probably billed. A fallback may still answer."""
    first_token_timeout_s: float | None = Field(default=None, gt=0)
    """Maximum time until the first piece of an answer, in seconds. Comments, pings and headers do not count
    as pieces. If null, `stall_timeout_s` applies. If you set no limit, Podium also applies a limit that it
    has [learned from recent calls](operations/worker-failures.md), but only while a fallback or another
    deployment is free. Until Podium has seen 20 calls, this second limit is 13 seconds. While the worker's
    calls fail, it is 30 seconds. While a fallback or another deployment is free, every limit is at most half
    of the request's remaining time, even if you set a longer one."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """Maximum time for looking up a host name and opening a connection, in seconds."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Extra fields for the body of every call. Use them for features of a server for which Podium has no
    setting."""
    allow_link_local: bool = False
    """Allow `base_url` to point to a link-local address or to a cloud's metadata service. Loopback addresses
    and private addresses are always allowed."""
    fetches_pictures: bool | None = None
    """Pass the image URLs of a request on to the server, which then fetches the images itself. Callers choose
    these URLs, and the server fetches them from inside its own network. If null, Podium passes URLs only to
    servers at public addresses. Other servers accept only images that are sent as `data:` URLs."""

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
        place = self.model_copy(update={**replaced, "like": self.like or self.model, "deployments": ()})
        _set_usual_key(place)
        return place

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        kind = str(getattr(self, "kind", ""))
        names = [each.name for each in self.deployments]
        for each in self.deployments:
            if names.count(each.name) > 1:
                raise ValueError(
                    f"Two deployments are named {each.name!r}, but the names of deployments must be unique"
                )
            try:
                check_access(kind, self.at(each))
            except ValueError as exc:
                raise ValueError(f"Deployment {each.name!r}: {exc}") from exc
        if not self.deployments:
            check_access(kind, self)
        _set_usual_key(self)
        return self


def _set_usual_key(worker: _ApiSettings) -> None:
    """Name the variable of the provider's key, unless `api_key_env`, a key file, an address or a service is set."""
    is_elsewhere = any(each is not None for each in (worker.api_key_file, worker.base_url, worker.service))
    if not (is_elsewhere or worker.deployments or "api_key_env" in worker.model_fields_set):
        key = USUAL_KEYS[str(getattr(worker, "kind", ""))]
        object.__setattr__(worker, "api_key_env", key)  # settings are frozen, and this is still validation


PLACE_FIELDS = ("model", "price", "max_concurrency", "provider", "local")
"""Fields of a worker, in addition to its access fields, that a deployment may set."""


class OpenAISettings(_ApiSettings):
    """OpenAI, or any server at a `base_url` that implements OpenAI's Chat Completions."""

    kind: Literal["openai"]
    api: Literal["chat", "responses"] = "chat"
    """OpenAI API that Podium uses for chats. `chat` stands for `/v1/chat/completions`, which most servers
    have. `responses` stands for `/v1/responses`, with which a model keeps its thoughts across its tool calls.
    """
    serves: Serves = ("chat",)
    """Operations that the server offers. `chat` is for chats, `text_completion` for `/v1/completions`, and
    `embeddings` for `/v1/embeddings`. Plans cannot use a worker without `chat`."""


class AnthropicSettings(_ApiSettings):
    """Anthropic's Messages API."""

    kind: Literal["anthropic"]


class GeminiSettings(_ApiSettings):
    """Google's Gemini API."""

    kind: Literal["gemini"]


class ScriptedSettings(WorkerBase):
    """Fake worker that answers from a script, for tests, benchmarks and demos."""

    kind: Literal["scripted"]
    replies: tuple[str | ScriptedReplySettings, ...] = ("",)
    """Replies of the worker. The worker uses them in order, and starts again after the last one. In a reply,
    Podium replaces `{question}` by the text of the user's last message."""
    serves: Serves = ("chat", "text_completion")
    """Operations that the worker serves. It computes embeddings from a checksum of the text, so they have no
    meaning. Plans cannot use a worker without `chat`."""
    delay_s: float = Field(default=0.0, ge=0)
    """Time to the first token, in seconds. After the first token, the worker writes at `tokens_per_s`. If
    that is null, it writes without pauses."""
    retry: RetrySettings = RetrySettings()


class PythonSettings(WorkerBase):
    """Worker that you write in Python. `serving.workers.plugin` describes the interface. Podium ships some of
    these workers, for example a calculator and a majority vote (docs/operations/program-workers.md).
    """

    kind: Literal["python"]
    factory: str = Field(pattern=r"^[\w.]+:\w+$")
    """Function that creates the worker, written as `package.module:callable`. The router's process must be
    able to import it."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the factory."""
    stall_timeout_s: float | None = Field(default=None, gt=0)
    """Maximum time between two pieces of an answer, in seconds. After this time, the call fails and is
    closed. If null, there is no limit."""
    first_token_timeout_s: float | None = Field(default=None, gt=0)
    """Maximum time until the first piece of an answer, in seconds. If null, `stall_timeout_s` applies. While
    another worker is free, the limit is never more than half of the request's remaining time."""


WorkerSettings = Annotated[
    VllmSettings | OpenAISettings | AnthropicSettings | GeminiSettings | ScriptedSettings | PythonSettings,
    Field(discriminator="kind"),
]
Kind = Literal["vllm", "openai", "anthropic", "gemini", "scripted", "python"]
ApiSettings = OpenAISettings | AnthropicSettings | GeminiSettings
API_SETTINGS = (OpenAISettings, AnthropicSettings, GeminiSettings)
"""Kinds of workers whose API key is named in the settings."""


def chats(worker: WorkerSettings) -> bool:
    """Return whether the worker serves chats, as plans and fallbacks need. Others are called by name."""
    return "chat" in getattr(worker, "serves", ("chat",))


def places_of(worker: WorkerSettings) -> dict[str, WorkerSettings]:
    """Return the settings of each deployment by `WORKER@DEPLOYMENT`, or the worker's by its name."""
    if not isinstance(worker, API_SETTINGS) or not worker.deployments:
        return {worker.name: worker}
    return {f"{worker.name}@{each.name}": worker.at(each) for each in worker.deployments}
