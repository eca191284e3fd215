"""Settings that every worker has, whatever its kind: fallbacks, retries, prices and limits."""

from decimal import Decimal
from typing import Literal, cast

from pydantic import Field, ValidationInfo, field_validator

from conductor.model.usage import LongPromptRates, Price
from serving.settings.access import Effort, Frozen

NAME = r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,99}$"


class RateSettings(Frozen):
    """US dollars per million tokens."""

    input_usd_per_mtok: Decimal = Field(ge=0)
    """Price of the prompt."""
    output_usd_per_mtok: Decimal = Field(ge=0)
    """Price of the answer, including thinking."""
    cached_input_usd_per_mtok: Decimal | None = Field(default=None, ge=0)
    """Price of the part of the prompt that is read from the provider's cache. If null, it costs the same as
    the rest of the prompt."""
    cache_write_usd_per_mtok: Decimal | None = Field(default=None, ge=0)
    """Price of the part of the prompt that is written to the provider's cache. If null, it costs the same as
    the rest of the prompt."""
    cache_write_1h_usd_per_mtok: Decimal | None = Field(default=None, ge=0)
    """Price of the part of the prompt that is cached for an hour. If null, it costs the same as other cache
    writes."""
    reasoning_usd_per_mtok: Decimal | None = Field(default=None, ge=0)
    """Price of the tokens spent on thinking. If null, they cost the same as the rest of the answer."""


class LongPromptSettings(RateSettings):
    """Prices for calls with a long prompt. They apply to all tokens of such a call."""

    above_input_tokens: int = Field(ge=1)
    """Length of the prompt, in tokens, above which these prices apply."""


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
    """Retries of a call that failed before its first token, and the waits between them."""

    attempts: int = Field(default=3, ge=1, le=10)
    """Maximum number of attempts, including the first one."""
    first_wait_s: float = Field(default=0.25, gt=0)
    """Upper bound of the wait before the first retry, in seconds. The bound doubles with each further
    attempt. The wait itself is random, between 0 and the bound."""
    max_wait_s: float = Field(default=8.0, gt=0)
    """Upper bound of every wait in seconds. If the server asks for a longer wait with `Retry-After`, the call
    is not retried. It goes to a fallback, or fails if there is none."""
    fallback_wait_s: float = Field(default=3.0, ge=0)
    """Maximum total time, in seconds, for which a call waits as `Retry-After` asks, although a fallback is
    free. It waits because the client asked for this worker. If the server asks for more, or for more than
    half of the request's remaining time, the fallback answers immediately. At 0, it always answers
    immediately."""
    share: float = Field(default=0.2, ge=0, le=1)
    """Maximum share of retries in the worker's calls from one router replica. Failed calls above the share
    are not retried. In addition, 10 retries are available at the start. For an engine with several replicas,
    this number is `scale.max_ongoing_requests`, because all calls of a replica fail when it is lost."""


class WorkerBase(Frozen):
    """Fields that every worker has, in addition to its `kind`: `vllm`, `openai`, `anthropic`, `gemini`,
    `python` or `scripted`.
    """

    name: str = Field(pattern=NAME)
    """Name of the worker in plans and records. Clients send it as `model` to call the worker directly."""
    card: str = ""
    """Description of what the worker is good at, such as `Strong at mathematics and code.` The conductor
    chooses workers by their cards."""
    in_pool: bool = True
    """Let plans use the worker. A conductor usually should not be in its own pool."""
    price: PriceSettings | None = None
    """Price of the worker's tokens. If null, workers of kind `vllm` and `scripted` are free. For a provider's
    model, Podium looks up the price in the table that it ships, by the model's name and endpoint, when the
    settings are read. A worker whose price stays unknown cannot be used by requests with a cost limit or by
    keys with a budget."""
    max_concurrency: int = Field(default=64, ge=1)
    """Maximum number of concurrent calls from one router replica. Further calls wait for a slot."""
    adaptive_concurrency: bool = True
    """Adapt the number of concurrent calls to the worker's load, between 1 and `max_concurrency`. The number
    falls while the worker reports that it is busy. It also falls while first tokens take twice their best
    time, if fewer calls make them faster. If false, the number is always `max_concurrency`."""
    max_wait_s: float = Field(default=60.0, gt=0)
    """Approximate maximum wait for a slot, in seconds. Podium estimates the wait from the queue and the pace
    of recent calls. If it would be longer, a fallback is called. If there is no fallback, a request that
    starts with this worker gets 429 with `Retry-After`. An admitted request gets the same error when its
    first call has waited this long. Batches, and runs that have already made a call, wait without a limit."""
    max_output_tokens: int = Field(default=4096, ge=1)
    """Maximum length of an answer in tokens, including thinking. This many tokens are reserved from a budget
    before each call."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature for requests that set none. If null, the model's own default applies."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling (`top_p`) for requests that set none. If null, the model's own default applies."""
    effort: Effort | None = None
    """Reasoning effort for requests that set none. If the model does not accept a level, it gets the nearest
    level that it accepts. A request's `reasoning_effort` applies only to the steps of a plan. A conductor
    therefore always uses this value, or `conductor.effort`."""
    system_prompt: str = ""
    """System prompt of the worker's calls."""
    sees_images: bool = False
    """Send images to the worker. Set this only if the model accepts images."""
    reads_pdfs: bool | None = None
    """Send PDF files to the worker. If null, this follows from what Podium knows of its kind and model. An
    unknown model, or a server behind a `base_url`, then gets no PDF files. Workers of kind `vllm` never get
    PDF files. Every worker gets text files."""
    calls_tools: bool | None = None
    """Offer the client's tools to the worker. If null, this follows from what Podium knows of its kind and
    model, and an unknown model gets the tools. A worker of kind `vllm` also needs `tool_call_parser` in its
    `engine`."""
    context_tokens: int | None = Field(default=None, ge=1)
    """Maximum length of prompt and answer together, in tokens. The conductor is shown this number. A request that
    is longer does not call the worker. If null, a worker of kind `vllm` uses the `max_model_len` of its engine.
    For a provider's model, Podium uses the length that it knows, which the conductor is not shown."""
    tokens_per_s: float | None = Field(default=None, gt=0)
    """Approximate speed in tokens per second. The conductor is shown this number. A worker of kind `scripted`
    writes at this speed."""
    fallbacks: tuple[str, ...] | Literal["auto"] = ()
    """Workers that are called, in this order, if this worker fails before its first token. Each may be named
    once. With `auto`, Podium chooses up to three workers of the pool that have at least the same abilities
    and at most twice the price. It prefers workers with a similar `card`, then those with a similar price. Of
    workers with equally similar cards, the cheaper one comes first."""
    try_first: tuple[str, ...] = ()
    """Workers that are called, in this order, before this one, if a conductor's plan names this one. Use it for
    programs that refuse every question that is not theirs. It does not apply to requests that choose their
    workers or their plan, or to calls with tools."""
    on_content_filter: Literal["fall_back", "tell"] = "tell"
    """Action if the provider rejects a prompt because of its content. With `tell`, the client gets 400
    `content_filter`. With `fall_back`, the fallbacks are called, as after any other failure. A prompt that
    one provider has rejected is sent to another only with `fall_back`."""
    on_broken_stream: Literal["continue", "tell"] = "continue"
    """Action if an answer is interrupted after the client has received part of it. With `continue`, the
    worker or a fallback continues the answer from that point. With `tell`, the client gets an error."""
    retry: RetrySettings = RetrySettings()
    """Retries of the worker's calls."""
    hedge: bool | None = None
    """Send a second copy of a call (a hedge) if the first token takes longer than in 95 % of recent calls.
    The copy goes to another deployment or replica of the worker. If the worker has several but no other one
    is available, no copy is sent. If it has only one address, the copy goes to the same address. The first of
    the two calls to send a token answers. The other call is closed, and is billed at the most that it can
    have cost. At most 5 % of calls are hedged, and only while half of the slots are free. If null, calls are
    hedged if the worker's tokens are free and it has several deployments or replicas."""
    optional: bool = False
    """Drop the worker with a warning if its API key is not set. If false, a missing key stops the start."""
    provider: str | None = None
    """Provider's name in the policies of teams and keys. If null, the worker's kind is the name, such as
    `openai`."""
    region: str | None = None
    """Region's name in policies, such as `eu` or `eu-central-1`. If null, the region is unknown, and a policy
    that names regions excludes the worker."""
    local: bool | None = None
    """Treat the worker as local for policies with `local_only`. Prompts to a local worker stay on your own
    machines. If null, workers of kind `vllm` and `scripted`, and workers whose `base_url` is on this machine,
    are local."""

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
