"""Settings that every worker has, whatever its kind: fallbacks, retries, prices and limits."""

from decimal import Decimal
from typing import Literal, cast

from pydantic import Field, ValidationInfo, field_validator

from conductor.model.usage import LongPromptRates, Price
from serving.settings.model_access import Effort, Frozen

NAME = r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,99}$"


class RateSettings(Frozen):
    """US dollars per million tokens."""

    input_usd_per_mtok: Decimal = Field(ge=0)
    """Price of the prompt."""
    output_usd_per_mtok: Decimal = Field(ge=0)
    """Price of the answer, including thinking."""
    cached_input_usd_per_mtok: Decimal | None = Field(default=None, ge=0)
    """Price of prompt tokens that the provider reads from its cache. If null, they cost the same as the rest
    of the prompt."""
    cache_write_usd_per_mtok: Decimal | None = Field(default=None, ge=0)
    """Price of prompt tokens that the provider writes to its cache. If null, they cost the same as the rest
    of the prompt."""
    cache_write_1h_usd_per_mtok: Decimal | None = Field(default=None, ge=0)
    """Price of prompt tokens that the provider caches for an hour. If null, they cost the same as other cache
    writes."""
    reasoning_usd_per_mtok: Decimal | None = Field(default=None, ge=0)
    """Price of the tokens spent on thinking. If null, they cost the same as the rest of the answer."""


class LongPromptSettings(RateSettings):
    """Prices for calls with a long prompt. They apply to all tokens of such a call."""

    above_input_tokens: int = Field(ge=1)
    """Length of the prompt in tokens. These prices apply to calls with a longer prompt."""


class PriceSettings(RateSettings):
    """Prices in US dollars per million tokens. A price in the settings takes precedence over the price table
    that ships with Podium.
    """

    long_prompts: tuple[LongPromptSettings, ...] = ()
    """Other prices for calls with long prompts. If several entries apply, the one with the highest threshold
    is used."""

    def to_price(self) -> Price:
        tiers = tuple(LongPromptRates(**tier.model_dump()) for tier in self.long_prompts)
        return Price(**self.model_dump(exclude={"long_prompts"}), long_prompts=tiers)


class RetrySettings(Frozen):
    """How Podium retries a call that failed before its first token, and how long it waits between the
    attempts.
    """

    attempts: int = Field(default=3, ge=1, le=10)
    """Maximum number of attempts, including the first one."""
    first_wait_s: float = Field(default=0.25, gt=0)
    """Upper bound of the wait before the first retry, in seconds. The bound doubles with each further
    attempt. The wait itself is random, between 0 and the bound."""
    max_wait_s: float = Field(default=8.0, gt=0)
    """Upper bound of every wait, in seconds. If the server uses `Retry-After` to ask for a longer wait,
    Podium calls a fallback instead of retrying. If there is no fallback, the call fails."""
    fallback_wait_s: float = Field(default=3.0, ge=0)
    """Maximum total time, in seconds, for which a call waits for this worker while a fallback is free. A call
    waits if the worker's server asks for a wait with `Retry-After`. If the server asks for a longer wait, or
    for more than half of the request's remaining time, Podium calls the fallback immediately. At 0, Podium
    always calls the fallback immediately."""
    share: float = Field(default=0.2, ge=0, le=1)
    """Maximum share of retries among the worker's calls from one router replica. Above this share, failed
    calls are not retried. When the router starts, 10 retries are available in addition to this share. For an
    engine with several replicas, `scale.max_ongoing_requests` retries are available instead of 10, because
    all calls of a replica fail together if the replica is lost."""


class WorkerBase(Frozen):
    """Fields that every worker has, in addition to its `kind`: `vllm`, `openai`, `anthropic`, `gemini`,
    `python` or `scripted`.
    """

    name: str = Field(pattern=NAME)
    """Name of the worker in plans and records. To call the worker directly, a client sends this name as
    `model`."""
    card: str = ""
    """Description of what the worker is good at, such as `Strong at mathematics and code.` The conductor
    chooses the workers of a plan by their cards."""
    in_pool: bool = True
    """Let plans use the worker. Usually, a conductor should not be in its own pool."""
    price: PriceSettings | None = None
    """Price of the worker's tokens. If null, workers of kind `vllm` and `scripted` are free. For a provider's
    model, Podium then looks up the model's name and endpoint in the price table that ships with Podium. If
    the price is still unknown, requests with a cost limit and keys with a budget cannot use the worker."""
    max_concurrency: int = Field(default=64, ge=1)
    """Maximum number of slots, which is the number of concurrent calls from one router replica. Further calls
    wait for a slot."""
    adaptive_concurrency: bool = True
    """Adapt the number of slots to the worker's load, between 1 and `max_concurrency`. Podium reduces the
    number of slots while the worker reports that it is busy. Podium also reduces it while the time to first
    token is twice as long as at best, provided that fewer concurrent calls shorten this time. If false, the
    number of slots is always `max_concurrency`."""
    max_wait_s: float = Field(default=60.0, gt=0)
    """Approximate maximum time, in seconds, for which a call waits for a slot. Podium estimates the wait from
    the length of the queue and the pace of recent calls. If a call would wait longer than this, Podium calls
    a fallback. If there is no fallback, a request whose first call needs this worker gets a 429 with
    `Retry-After`. If the estimate was too short, the request gets the same error once its first call has
    waited this long. Batches, and runs that have already made a call, wait without a limit."""
    max_output_tokens: int = Field(default=4096, ge=1)
    """Maximum length of an answer in tokens, including thinking. Before each call, Podium reserves this many
    tokens from the budget."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature for requests that set none. If null, the model's own default applies."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling (`top_p`) for requests that set none. If null, the model's own default applies."""
    effort: Effort | None = None
    """Reasoning effort for requests that set none. If the model does not accept this level, Podium sends the
    nearest level that the model accepts. A request's `reasoning_effort` applies only to the steps of a plan.
    When a worker writes plans as the conductor, it therefore uses this value or `conductor.effort`."""
    system_prompt: str = ""
    """System prompt of the worker. In each step of a plan, Podium sends it before the system prompt of the
    request."""
    sees_images: bool = False
    """Send images to the worker. Set this only if the model accepts images."""
    reads_pdfs: bool | None = None
    """Send PDF files to the worker. If null, Podium decides this by the worker's kind and model: it sends no
    PDF files to models that it does not know, or to servers at a `base_url`. Workers of kind `vllm` never get
    PDF files. Text files are sent to every worker."""
    calls_tools: bool | None = None
    """Offer the client's tools to the worker. If null, Podium decides this by the worker's kind and model,
    and offers the tools to models that it does not know. A worker of kind `vllm` also needs
    `tool_call_parser` in its `engine`."""
    context_tokens: int | None = Field(default=None, ge=1)
    """Maximum length of the prompt and the answer together, in tokens. Podium shows this number to the
    conductor, and does not call the worker for longer requests. If null, a worker of kind `vllm` uses the
    `max_model_len` of its engine. For a provider's model, Podium uses the length that it knows, but does not
    show this length to the conductor."""
    tokens_per_s: float | None = Field(default=None, gt=0)
    """Approximate speed in tokens per second. Podium shows this number to the conductor. A worker of kind
    `scripted` writes at this speed."""
    fallbacks: tuple[str, ...] | Literal["auto"] = ()
    """Workers that Podium calls, in this order, if this worker fails before its first token. Name each worker
    only once. With `auto`, Podium chooses up to three workers of the pool that have at least the same
    abilities and cost at most twice as much. Workers with the most similar `card` come first. Among workers
    with equally similar cards, the cheapest comes first. If no card is similar, the workers with the most
    similar price come first."""
    try_first: tuple[str, ...] = ()
    """Workers that Podium calls, in this order, before this one, if a conductor's plan names this one. Use it
    for programs that reject every question that is not theirs. It does not apply to requests that choose their
    workers or their plan, or to calls with tools."""
    on_content_filter: Literal["fall_back", "tell"] = "tell"
    """What Podium does if the provider rejects a prompt because of its content. With `tell`, the client gets
    a 400 `content_filter`. With `fall_back`, Podium calls the fallbacks, as after any other failure. This may
    send the rejected prompt to another provider."""
    on_broken_stream: Literal["continue", "tell"] = "continue"
    """What Podium does if an answer is interrupted after the client has received part of it. With `continue`,
    the worker or a fallback continues the answer from that point. With `tell`, the client gets an error."""
    retry: RetrySettings = RetrySettings()
    """Retries of the worker's calls."""
    hedge: bool | None = None
    """Hedge calls: if the first token of a call takes longer than in 95 % of recent calls, Podium sends the
    call a second time. The answer comes from the call that sends its first token earlier. Podium closes the
    other call, and bills it at the most that it can have cost. The second call goes to another deployment or
    replica of the worker, or to the same address if the worker has only one. Podium hedges at most 5 % of
    calls, and only while half of the slots are free. If null, Podium hedges calls if the worker's tokens are
    free and it has several deployments or replicas."""
    optional: bool = False
    """Start the server without this worker, and with a warning, if the worker's API key is not set. If false,
    the server does not start without the key."""
    provider: str | None = None
    """Name of the provider in the policies of teams and keys. If null, the name is the worker's kind, such as
    `openai`."""
    region: str | None = None
    """Name of the region in policies, such as `eu` or `eu-central-1`. If null, the region is unknown, and a
    policy that names regions excludes the worker."""
    local: bool | None = None
    """Treat the worker as local for policies with `local_only`. This means that prompts to the worker stay on
    your own machines. If null, workers of kind `vllm` and `scripted` are local, and so are workers whose
    `base_url` points to this machine."""

    @field_validator("fallbacks", "try_first", mode="before")
    @classmethod
    def _check_fallbacks(cls, value: object, info: ValidationInfo) -> object:
        check_fallbacks(value, info.data.get("name", ""))
        return value

    @property
    def named_fallbacks(self) -> tuple[str, ...]:
        """Fallbacks that the settings name; none with `auto`."""
        return () if self.fallbacks == "auto" else self.fallbacks


def check_fallbacks(fallbacks: object, worker: str) -> None:
    """Check that a worker's fallbacks are names, neither repeated nor its own, or raise ValueError.

    Such a fallback would be called right after it failed, and would shorten time limits as a free worker.
    """
    if fallbacks == "auto":
        return
    if not isinstance(fallbacks, list | tuple):
        raise ValueError("must be a list of worker names, or `auto`")
    names = cast(list[object] | tuple[object, ...], fallbacks)
    for number, name in enumerate(names):
        if not isinstance(name, str):
            raise ValueError("must be a list of worker names, or `auto`")
        if name == worker:
            raise ValueError(f"must not name the worker {name!r} itself")
        if name in names[:number]:
            raise ValueError(f"must not name {name!r} more than once")
