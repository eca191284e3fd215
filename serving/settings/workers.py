"""What the settings say of one worker: its kind, and what that kind needs.

Unknown keys are refused. Keys of providers are only ever named (`api_key_env`, `api_key_file`), never
written.
"""

from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, ValidationInfo, field_validator, model_validator

from conductor.model.operation import Operation
from serving.lora.adapters import AdapterError, name_of
from serving.settings.accepts import Accepts
from serving.settings.access import Access, Effort, Frozen, check_access
from serving.settings.fakes import ScriptedCallSettings as ScriptedCallSettings
from serving.settings.fakes import ScriptedReplySettings, StandInSettings
from serving.settings.named_fallbacks import check_fallbacks
from serving.settings.prices import PriceSettings
from serving.settings.scale import Scale

NAME = r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,99}$"


class RetrySettings(Frozen):
    """How often a call is made again before its first token, and how long is waited in between."""

    attempts: int = Field(default=3, ge=1, le=10)
    """The most tries, the first one included."""
    first_wait_s: float = Field(default=0.25, gt=0)
    """Upper bound of the first wait; it doubles with each try. The wait itself is drawn at random."""
    max_wait_s: float = Field(default=8.0, gt=0)
    """Upper bound of every wait. A `Retry-After` beyond it is not waited for: a fallback is asked, or the
    call fails."""
    fallback_wait_s: float = Field(default=3.0, ge=0)
    """How long a call waits for a `Retry-After` while a fallback could answer, all its waits together: the client asked
    for this worker. If the server asks for more, or for more than half of the request's time that is left, the fallback
    answers at once. 0: it always does."""
    share: float = Field(default=0.2, ge=0, le=1)
    """The most retries, as a share of the worker's calls at one router replica; ten more are always there to
    begin with, and for an engine of several replicas as many as one replica has calls (`scale.max_ongoing_requests`),
    which all break when it is lost. Beyond it a call that fails is not made again."""


class _WorkerBase(Frozen):
    """What every worker has beside its `kind`: `vllm`, `openai`, `anthropic`, `gemini`, `python` or
    `scripted`.
    """

    name: str = Field(pattern=NAME)
    """Its name in plans, in records and as `model` in requests."""
    card: str = ""
    """What it is good at, in the words that the conductor reads."""
    in_pool: bool = True
    """Whether plans may use it. A conductor usually should not be in its own pool."""
    price: PriceSettings | None = None
    """What its tokens cost. null: nothing for `vllm` and `scripted`; for a provider's model what the price
    table says that comes with Podium, read when the settings are, by its name and where it is asked. Else
    unknown: requests with a cost limit, and keys with a budget, cannot use it."""
    max_concurrency: int = Field(default=64, ge=1)
    """The most concurrent calls of one router replica; more wait for a slot."""
    adaptive_concurrency: bool = True
    """Whether fewer are open at once, down to one, while it says that it is busy, or while its first tokens take
    twice as long as at their best and fewer calls make them sooner. Off: always `max_concurrency`."""
    max_wait_s: float = Field(default=60.0, gt=0)
    """About how long a call may wait for a slot, by its place in the line and the pace of the newest calls. Where
    it would be longer a fallback is asked; without one, requests that would begin there get 429 with `Retry-After`;
    so does one that was let in, once its first call has waited so long. Runs that have made a call, and batches, wait however long it is."""
    max_output_tokens: int = Field(default=4096, ge=1)
    """The longest answer, thoughts included; also what is reserved of a budget before a call."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature where a request does not say. null: the model's own default."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling where a request does not say. null: the model's own default."""
    effort: Effort | None = None
    """How long it thinks where a request does not say: `none`, `minimal`, `low`, `medium`, `high`, `xhigh`
    or `max`, of which a model gets the nearest that it accepts. The conductor thinks always so: a request's
    `reasoning_effort` is for the steps."""
    system_prompt: str = ""
    """The system prompt of its calls."""
    sees_images: bool = False
    """Whether it accepts pictures."""
    reads_pdfs: bool | None = None
    """Whether it accepts PDFs as they are. null: what is known of its kind and model; a server behind a `base_url`
    and a model that nobody knows do not. A vllm worker never does. Text files need nothing: every worker reads them."""
    calls_tools: bool | None = None
    """Whether it may be offered the client's tools. null: what is known of its kind and model; a model that nobody
    knows may be. A vllm worker never without its engine's `tool_call_parser`."""
    context_tokens: int | None = Field(default=None, ge=1)
    """The longest prompt and answer together, for the conductor to know; a vllm worker's is its engine's
    `max_model_len` where not given."""
    tokens_per_s: float | None = Field(default=None, gt=0)
    """About how fast it writes, for the conductor to know; a scripted worker writes so fast."""
    fallbacks: tuple[str, ...] | Literal["auto"] = ()
    """Other workers, each named once, asked in turn where this one fails before its first token. `auto`: up to three of the pool that can
    what it can and cost at most twice as much: those whose cards are most alike to its own, of about equally alike ones
    the cheaper first; then those with the nearest price."""
    on_content_filter: Literal["fall_back", "tell"] = "tell"
    """If its provider refuses a prompt for its content: tell the client (400 `content_filter`), or ask the
    fallbacks, as for any failure. A prompt that one provider refuses is sent to no other unless this says so."""
    on_broken_stream: Literal["continue", "tell"] = "continue"
    """Where an answer breaks off after its client has seen some of it: let it go on from there, by the worker or a
    fallback, or tell the client."""
    retry: RetrySettings = RetrySettings()
    """How its calls are retried."""
    hedge: bool | None = None
    """Whether a call is made a second time where its first token takes longer than 95 % of the newest ones did: at
    most for 5 % of the calls, and while half of the slots are free. It goes to another deployment or replica than the
    first, and is not made where there is no other; a worker at one address is asked there again. Whichever speaks first
    answers; the other is closed, and paid as all that it can have cost. null: where its tokens cost nothing and it has
    several deployments or replicas."""
    optional: bool = False
    """Leave it out, with a warning, where its key is not set."""
    provider: str | None = None
    """Who runs it, as policies of teams and keys name it. null: its kind, such as `openai`."""
    region: str | None = None
    """Where it runs, as policies name it, such as `eu` or `eu-central-1`. null: nobody said, so a policy that
    names regions leaves it out."""
    local: bool | None = None
    """Whether what it is sent stays on one's own machines, for policies with `local_only`. null: yes for kinds
    `vllm` and `scripted` and for a `base_url` on this machine, else no."""

    @field_validator("fallbacks", mode="before")
    @classmethod
    def _check_fallbacks(cls, said: object, info: ValidationInfo) -> object:
        check_fallbacks(said, info.data.get("name", ""))
        return said

    @property
    def named_fallbacks(self) -> tuple[str, ...]:
        """Those that the settings name."""
        return () if self.fallbacks == "auto" else self.fallbacks


Serves = Annotated[tuple[Operation, ...], Field(min_length=1)]


class VllmSettings(_WorkerBase):
    """A model on one's own machines. Workers of the same `deployment` share one engine."""

    kind: Literal["vllm"]
    model: str
    """A folder, or a hub's name. Not needed with `deployment`."""
    like: str | None = None
    """The public name of the model, such as `Qwen2.5-1.5B-Instruct`, where `model` is a folder: a conductor with the built-in prompt
    is told it."""
    deployment: str | None = Field(default=None, pattern=NAME)
    """Another vllm worker whose engine answers for this one too; its model, engine and scale are that
    one's."""
    engine: dict[str, Any] = Field(default_factory=dict)
    """vLLM's own engine arguments, by vLLM's names; and `chat_template_kwargs`, and `tool_call_parser`: the parser
    that reads the model's calls of tools, such as `hermes`. Without one the worker calls none."""
    adapter: str | None = None
    """A LoRA adapter, put over the model for this worker's calls: a folder, or an address in an object
    store (`s3://`, `gs://`, `abfss://`), that ends in a name such as `conductor@1a2b3c4d`; see
    `serving.lora.adapters`."""
    scale: Scale = Scale()
    """How many replicas its engine has, and on what machines."""
    serves: Annotated[tuple[Literal["chat", "text_completion"], ...], Field(min_length=1)] = (
        "chat",
        "text_completion",
    )
    """What it can be asked for: `chat`, and `text_completion` (`/v1/completions`: the prompt as it stands)."""
    stall_timeout_s: float | None = Field(default=None, gt=0)
    """No token for so long is a failure: the call is closed, and the engine gives it up. null: 120 s, or 600 s for
    requests of the priority `batch`, which let all others go first; for others, in the middle of an answer that another
    worker is free to go on with, four times the p99 of the longest pauses of its newest answers, 20 s at least,
    once 20 are known."""
    first_token_timeout_s: float | None = Field(default=None, gt=0)
    """How long the first token may take, the engine's queue included; while no replica is up and one is being started
    the time does not count. null: as `stall_timeout_s` says where it is set, else 300 s (`batch`: 600 s); but where a
    fallback is free to answer and the priority is not `batch`, four times the p99 of its newest calls, 10 s at
    least, 13 s until 20 calls are known, and 30 s while its calls fail. Always at most half of the request's time that is
    left while another one is free."""
    stand_in: StandInSettings | None = None
    """Serve a scripted engine in vLLM's place: scaling and routing can then be tried without a model."""

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
                raise ValueError(f"has both `deployment` and `{own[0]}`; they are the other worker's")
            return {"model": "", **fields}
        return cast(Any, data)


class DeploymentSettings(Access):
    """One of the places where a worker's model is reached: an account, a region, a server. What it says takes the
    place of the worker's own. One with a `base_url` or a `service` uses nothing of the worker's access: no key
    goes to another server.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$")
    """Its name in records, spans and logs."""
    weight: float = Field(default=1.0, gt=0, le=1_000_000)
    """Its share of the worker's calls, beside the weights of the others."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    """Calls that one router replica sends it a minute at most; then the others are asked. null: any."""
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """Likewise tokens, read and written together. null: any."""
    max_concurrency: int | None = Field(default=None, ge=1)
    """Its concurrent calls of one router replica; then the others are asked first. null: the worker's, which all of
    them together have at most in any case."""
    model: str | None = None
    """What the model is called there. null: as the worker says."""
    price: PriceSettings | None = None
    """What its tokens cost there. null: as the worker says, else what the price table says of that place."""
    provider: str | None = None
    """Who runs it, as policies name it. null: as the worker says, or its kind with a `base_url` or `service`."""
    local: bool | None = None
    """Whether what it is sent stays on one's own machines. null: as the worker says, or with a `base_url` or
    `service` whether that is on this machine."""


class _ApiSettings(Access, _WorkerBase):
    """A model behind a provider's API. Its kind is the API that it speaks: `openai` is OpenAI's Chat
    Completions, whoever serves them.
    """

    model: str
    """As the provider knows it; an Azure deployment's name."""
    like: str | None = None
    """The public name of the model, such as `gpt-5`, where `model` is a deployment's: what it accepts is
    looked up by it."""
    accepts: Accepts = Accepts()
    """What the model accepts of a call, in place of what is known of it by its name. The rest is not sent,
    and noted on the record."""
    deployments: tuple[DeploymentSettings, ...] = ()
    """Places where the same model is reached, in place of the worker's own one. Each call goes to one of them,
    drawn by weight among those that are well and have room; where it fails before its first token, to the next."""
    stall_timeout_s: float | None = Field(default=None, gt=0)
    """No word for so long is a failure. Comments, pings and headers are no words. null: 120 s, or 600 s where
    the model is known to think at the call's effort; but in the middle of an answer that another worker is free to
    go on with, for a model that does not think, four times the p99 of the longest pauses of its newest answers, 20 s
    at least, once 20 are known. A model that had begun to answer is not asked again: it is probably paid, and a
    fallback may still answer."""
    first_token_timeout_s: float | None = Field(default=None, gt=0)
    """How long the first word may take, counted likewise. null: as `stall_timeout_s` says; but where a fallback
    or another deployment is free to answer and the model does not think at the call's effort, four times the
    p99 of its newest calls, 10 s at least, 13 s until 20 calls are known, and 30 s while its calls fail. Always at
    most half of the request's time that is left while another one is free."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    """How long opening a connection may take, and looking up its name."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Sent along with every call, for what a server understands beyond the fields that we send."""
    allow_link_local: bool = False
    """Let `base_url` lead to a link-local address or to a cloud's metadata service. Loopback and private
    addresses need no permission beside `base_url` itself."""
    fetches_pictures: bool | None = None
    """Whether its server may be given the address of a picture in a request, and so fetch what callers name,
    from where it stands. null: only a server at a public address; to others pictures are sent as `data:`."""

    def at(self, deployment: DeploymentSettings) -> Self:
        """The worker as it is reached at `deployment`."""
        own = {name: getattr(deployment, name) for name in (*Access.model_fields, *PLACE_FIELDS)}
        is_elsewhere = deployment.service is not None or deployment.base_url is not None
        has_key = deployment.api_key_env is not None or deployment.api_key_file is not None
        kept = {
            *((*Access.model_fields, "provider", "local") if is_elsewhere else ()),
            *(("api_key_env", "api_key_file") if has_key else ()),
        }
        laid_over = {name: value for name, value in own.items() if value is not None or name in kept}
        return self.model_copy(update={**laid_over, "like": self.like or self.model, "deployments": ()})

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
"""What else of a worker its deployments may say."""


class OpenAISettings(_ApiSettings):
    """OpenAI, or any server that speaks its Chat Completions (`base_url`)."""

    kind: Literal["openai"]
    api: Literal["chat", "responses"] = "chat"
    """Which of OpenAI's APIs its chats go to: `chat` (`/v1/chat/completions`), which most servers have, or
    `responses` (`/v1/responses`), where a model's thoughts survive its calls of tools."""
    serves: Serves = ("chat",)
    """What its server can be asked for: `chat`, `text_completion` (`/v1/completions`), `embeddings`
    (`/v1/embeddings`). Without `chat` no plan may use it."""


class AnthropicSettings(_ApiSettings):
    """Anthropic's Messages API."""

    kind: Literal["anthropic"]


class GeminiSettings(_ApiSettings):
    """Google's Gemini API."""

    kind: Literal["gemini"]


class ScriptedSettings(_WorkerBase):
    """The fake that ships: answers from a script. For tests, benches and demos of the machinery."""

    kind: Literal["scripted"]
    replies: tuple[str | ScriptedReplySettings, ...] = ("",)
    """What it says, in turn, and then from the first again. `{question}` becomes the last words of the
    user."""
    serves: Serves = ("chat", "text_completion")
    """What it can be asked for: `chat`, `text_completion`, `embeddings`. Its vectors are made up of the text's
    checksum: they mean nothing. Without `chat` no plan may use it."""
    delay_s: float = Field(default=0.0, ge=0)
    """Time to first token. Its pace after that is `tokens_per_s`; null: no pause."""
    retry: RetrySettings = RetrySettings()


class PythonSettings(_WorkerBase):
    """A worker of one's own, written in Python; see `serving.workers.plugin`. One ships, a vote: docs/operations.md."""

    kind: Literal["python"]
    factory: str = Field(pattern=r"^[\w.]+:\w+$")
    """Where it is made: `package.module:callable`, importable by the router's process."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Given to the factory by name."""
    stall_timeout_s: float | None = Field(default=None, gt=0)
    """No word for so long is a failure, and its call is closed. null: it is waited for, however long it takes."""
    first_token_timeout_s: float | None = Field(default=None, gt=0)
    """How long the first word may take. null: as `stall_timeout_s` says. Always at most half of the request's time that is
    left while another one is free."""


WorkerSettings = Annotated[
    VllmSettings | OpenAISettings | AnthropicSettings | GeminiSettings | ScriptedSettings | PythonSettings,
    Field(discriminator="kind"),
]
Kind = Literal["vllm", "openai", "anthropic", "gemini", "scripted", "python"]
ApiSettings = OpenAISettings | AnthropicSettings | GeminiSettings
API_SETTINGS = (OpenAISettings, AnthropicSettings, GeminiSettings)
"""The kinds whose key is named in the settings."""


def chats(worker: WorkerSettings) -> bool:
    """Whether it can be asked for a chat; what cannot is reached by its own name alone."""
    return "chat" in getattr(worker, "serves", ("chat",))


def places_of(worker: WorkerSettings) -> dict[str, WorkerSettings]:
    """The worker as it is reached at each of its deployments, by `WORKER@DEPLOYMENT`; where it has none, the
    worker by its name.
    """
    if not isinstance(worker, API_SETTINGS) or not worker.deployments:
        return {worker.name: worker}
    return {f"{worker.name}@{each.name}": worker.at(each) for each in worker.deployments}
