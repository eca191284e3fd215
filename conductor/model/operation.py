"""What a call is for, in the words of OpenTelemetry's GenAI conventions, and what only some wires take of it."""

from dataclasses import dataclass, fields
from typing import Literal

Operation = Literal["chat", "text_completion", "embeddings"]
"""`text_completion`: the prompt goes on as it stands, without a chat's marks. `embeddings`: a vector for each
message; the answer is one line a vector, base64 of little-endian float32."""
CallKind = Operation | Literal["plan"]
"""What a call is for: as `Operation`, or a conductor's, that writes a plan."""


@dataclass(frozen=True, slots=True)
class TokenBias:
    """What is added to a token's logit; `token` is its number in the model's own vocabulary."""

    token: str
    bias: float


@dataclass(frozen=True, slots=True)
class Likely:
    """A token and how probable it was in its place, as a natural logarithm."""

    token: str
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of an answer, how probable it was, and the likeliest ones in its place."""

    token: str
    logprob: float
    top: tuple[Likely, ...] = ()


@dataclass(frozen=True, slots=True)
class WireOptions:
    """What only some wires take. None always means: not asked for."""

    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: tuple[TokenBias, ...] | None = None
    top_logprobs: int | None = None
    """The tokens' log probabilities are wanted, and those of so many others in each place."""
    verbosity: str | None = None
    dimensions: int | None = None
    """Of each vector of an embedding."""

    @property
    def asked(self) -> tuple[str, ...]:
        """The names of those that are asked for."""
        return tuple(each.name for each in fields(self) if getattr(self, each.name) is not None)


NO_OPTIONS = WireOptions()
