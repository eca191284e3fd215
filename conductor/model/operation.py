"""What a call is for, in the words of OpenTelemetry's GenAI conventions, and what only some wires take of it."""

import json
from collections.abc import Sequence
from typing import Any, Literal, cast

from conductor.model.value import Value

Operation = Literal["chat", "text_completion", "embeddings"]
"""`text_completion`: the prompt goes on as it stands, without a chat's marks. `embeddings`: a vector for each
message; the answer is one line a vector, base64 of little-endian float32."""
CallKind = Operation | Literal["plan"]
"""What a call is for: as `Operation`, or a conductor's, that writes a plan."""


class TokenBias(Value, frozen=True):
    """What is added to a token's logit; `token` is its number in the model's own vocabulary."""

    token: str
    bias: float


class Likely(Value, frozen=True):
    """A token and how probable it was in its place, as a natural logarithm."""

    token: str
    logprob: float


class TokenLogprob(Value, frozen=True):
    """A token of an answer, how probable it was, and the likeliest ones in its place."""

    token: str
    logprob: float
    top: tuple[Likely, ...] = ()


class PromptCache(Value, frozen=True):
    """OpenAI's hints for the prompt cache of a request; empty: not sent.

    Args:
        key: `prompt_cache_key`, which sends requests with a common prefix to the same machine.
        retention: `prompt_cache_retention`.
        mode, ttl: of `prompt_cache_options`.
    """

    key: str = ""
    retention: str = ""
    mode: str = ""
    ttl: str = ""


class WireOptions(Value, frozen=True):
    """What only some wires take. None always means: not asked for."""

    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: tuple[TokenBias, ...] | None = None
    top_logprobs: int | None = None
    """The tokens' log probabilities are wanted, and those of so many others in each place."""
    verbosity: str | None = None
    dimensions: int | None = None
    """Of each vector of an embedding."""
    token_prompt: bool | None = None
    """The prompt is the numbers of tokens, in the words of `tokens_text`. Nobody else is asked in its place: another
    model's vocabulary is another."""
    prompt_cache: PromptCache | None = None
    """A hint: it changes no answer, and a wire that does not know it leaves it out."""
    encoding_format: Literal["float"] | None = None
    """A hint: vectors are wanted as lists of numbers, so a wire need not ask for base64."""

    @property
    def asked(self) -> tuple[str, ...]:
        """The names of those that are asked for, without the hints."""
        names = (name for name in self.__struct_fields__ if name not in HINTS)
        return tuple(name for name in names if getattr(self, name) is not None)


HINTS = frozenset({"prompt_cache", "encoding_format"})
"""Options that no worker has to take."""


NO_OPTIONS = WireOptions()
TOKENS_GONE = "its prompt's tokens were not kept whole. Ask again."


def tokens_text(tokens: Sequence[int]) -> str:
    """Numbers of tokens as a text, which is at least as long."""
    return json.dumps(tokens, separators=(",", ":"))


def read_tokens(text: str) -> list[int]:
    """The numbers in what `tokens_text` wrote; raises ValueError for any other text, as one of which something was
    taken out before it was kept.
    """
    found: object = json.loads(text)
    if not isinstance(found, list):
        raise ValueError("the text is no list")
    return [int(each) for each in cast(list[Any], found)]
