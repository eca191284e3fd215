"""Kinds of calls, named as in OpenTelemetry's GenAI conventions, options that only some provider APIs support, and the
text form of token ids and of embedding vectors.
"""

import base64
import binascii
import json
import struct
from collections.abc import Sequence
from typing import Any, Literal, cast

from conductor.model.value import Value

Operation = Literal["chat", "text_completion", "embeddings"]
"""Kind of a call.

* `chat`: a conversation.
* `text_completion`: the model continues the prompt as it is, without chat markup.
* `embeddings`: the model returns a vector for each message. Each line of the answer is one vector, written by
  `vector_text`."""
CallKind = Operation | Literal["plan"]
"""Kind of a call, or `plan` for a conductor's call that writes a plan."""


class TokenBias(Value, frozen=True):
    """Value that is added to a token's logit. `token` is its id in the model's own vocabulary."""

    token: str
    bias: float


class Likely(Value, frozen=True):
    """Token and its log probability (natural logarithm)."""

    token: str
    logprob: float


class TokenLogprob(Value, frozen=True):
    """Token of an answer with its log probability, and the most likely tokens at its position."""

    token: str
    logprob: float
    top: tuple[Likely, ...] = ()


class PromptCache(Value, frozen=True):
    """Hints for prompt caching. Empty hints are not sent.

    Args:
        key: OpenAI's `prompt_cache_key`, which routes requests with a common prefix to the same machine.
        retention: OpenAI's `prompt_cache_retention`.
        mode, ttl: fields of OpenAI's `prompt_cache_options`.
        conversation: id of the conversation, for the choice of a deployment or replica. The turns of a conversation
            share a prefix.
        lifetime: lifetime of the breakpoints that Podium sets, in Anthropic's words, or "" for five minutes.
        quick_turns: number of user turns in a row that came quickly while the lifetime was an hour.
        is_named: whether the client has named the conversation. Otherwise its first messages identify it, and other
            requests may begin alike.
    """

    key: str = ""
    retention: str = ""
    mode: str = ""
    ttl: str = ""
    conversation: str = ""
    lifetime: Literal["", "5m", "1h"] = ""
    quick_turns: int = 0
    is_named: bool = False


class WireOptions(Value, frozen=True):
    """Options that only some provider APIs support. None always means that the option is not set."""

    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: tuple[TokenBias, ...] | None = None
    top_logprobs: int | None = None
    """Number of alternatives per position with log probabilities. The chosen token is always included."""
    verbosity: str | None = None
    dimensions: int | None = None
    """Length of each embedding vector."""
    token_prompt: bool | None = None
    """True if the prompt is token ids by `tokens_text`. Fallbacks have other vocabularies and are not called."""
    prompt_cache: PromptCache | None = None
    """A hint that does not change the answer. It is not sent to providers that do not support it."""
    encoding_format: Literal["float"] | None = None
    """A hint that the client wants vectors as lists of numbers, so that the provider need not send base64."""

    @property
    def conversation(self) -> str:
        """Id of the conversation that the call belongs to, or "" if it has none."""
        return self.prompt_cache.conversation if self.prompt_cache else ""

    @property
    def for_plans(self) -> "WireOptions":
        """Options of the calls that write the plans of this conversation. These prompts have another prefix than the
        workers' prompts, so they have a conversation's id of their own.
        """
        cache = self.prompt_cache
        if cache is None or not cache.conversation:
            return NO_OPTIONS
        plans = PromptCache(
            conversation=f"{cache.conversation}-plan", lifetime=cache.lifetime, is_named=cache.is_named
        )
        return WireOptions(prompt_cache=plans)

    @property
    def set_options(self) -> tuple[str, ...]:
        """Names of the options that are set, without hints."""
        names = (name for name in self.__struct_fields__ if name not in HINTS)
        return tuple(name for name in names if getattr(self, name) is not None)


HINTS = frozenset({"prompt_cache", "encoding_format"})
"""Options that no worker has to support."""


NO_OPTIONS = WireOptions()
TOKENS_GONE = "the token ids of its prompt were not stored completely. Send the request again."


def tokens_text(tokens: Sequence[int]) -> str:
    """Encode token ids as text. The text has at least as many characters as there are tokens."""
    return json.dumps(tokens, separators=(",", ":"))


def read_tokens(text: str) -> list[int]:
    """Return the ids that `tokens_text` wrote. Raise ValueError for others, such as redacted ones."""
    try:
        value: object = json.loads(text)
    except RecursionError as exc:
        raise ValueError("the text is nested too deeply") from exc
    if not isinstance(value, list):
        raise ValueError("the text is not a list")
    return [int(each) for each in cast(list[Any], value)]


def vector_text(vector: Sequence[float]) -> str:
    """Return `vector` as base64 of little-endian float32. Raise ValueError for larger numbers."""
    try:
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
    except (struct.error, OverflowError) as exc:
        raise ValueError(f"not a vector of float32: {exc}") from exc


def read_vector(text: str) -> list[float]:
    """Return the vector that `vector_text` wrote, or raise ValueError."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise ValueError(f"not base64: {exc}") from exc
    if not data or len(data) % 4:
        raise ValueError(f"{len(data)} bytes are not a vector of float32")
    return list(struct.unpack(f"<{len(data) // 4}f", data))
