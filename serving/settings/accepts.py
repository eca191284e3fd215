"""Parameters that a model accepts in a call, and their bounds. The models themselves are in
`known_models.py`.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from conductor.model.terms import EFFORTS as LEVELS

THINKING_TOKENS = {
    "none": 0,
    "minimal": 1024,
    "low": 4096,
    "medium": 8192,
    "high": 16_384,
    "xhigh": 32_768,
    "max": 32_768,
}
"""Tokens reserved for thoughts at each level of effort. They are Podium's own estimates: no provider
publishes them."""


class Accepts(BaseModel):
    """Parameters that a model accepts. The defaults fit an unknown model: everything is accepted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sampling: Literal["always", "unless_thinking", "never"] = "always"
    """When `temperature` and `top_p` may be sent: `always`, `unless_thinking` (only in calls without
    thinking) or `never`."""
    max_temperature: float = Field(default=2.0, gt=0)
    """Highest `temperature` that may be sent. A higher value is lowered to it."""
    temperature_with_top_p: bool = True
    """Allow `temperature` and `top_p` in the same call. If false, only `temperature` is sent."""
    stop_sequences: int = Field(default=16, ge=0)
    """Maximum number of stop sequences that may be sent. Podium itself cuts the answer at the remaining ones.
    """
    blank_stop_sequences: bool = True
    """Allow stop sequences that consist only of white space."""
    seed: Literal["int64", "int32", "none"] = "int64"
    """Range of `seed`: 64-bit or 32-bit signed integers. With `none`, no seed may be sent."""
    samplers: tuple[Literal["top_k", "min_p", "repetition_penalty"], ...] = (
        "top_k",
        "min_p",
        "repetition_penalty",
    )
    """Samplers that may be sent in calls in which `temperature` may be sent. OpenAI's own models accept none
    of them. Anthropic's and Google's models accept `top_k`."""
    efforts: tuple[str, ...] | None = None
    """Levels of reasoning effort that may be sent. Another level is replaced by the nearest of them. If the
    list is empty, no level may be sent. If null, every level may be sent."""
    default_effort: str = "none"
    """Level of reasoning effort that the model uses if a call sets none. With `none`, the model does not
    think."""
    json_schema: bool = True
    """Allow an answer to be constrained to a JSON schema."""
    prefill: bool = False
    """Let the model continue an assistant message at the end of a conversation. An answer that broke off can
    then continue from its last character. For kind `openai`, this uses vLLM's `continue_final_message`. It is
    never used while the model thinks."""
    verbosity: bool = False
    """Allow `verbosity` (kind `openai`)."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    """Highest limit for the length of an answer that may be sent, in tokens. If null, it is unknown."""
    output_limit_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    """Name of the field that limits the length of an answer (kind `openai`). If null, it is
    `max_completion_tokens` at api.openai.com, and `max_tokens` elsewhere."""

    def effort(self, level: str | None) -> str | None:
        """Return the level to send for `level`: itself, the nearest that the model knows, or None for no
        level.
        """
        if level is None or self.efforts is None or level in self.efforts:
            return level
        if level not in LEVELS or not self.efforts:
            return None
        wanted = LEVELS.index(level)
        return min(
            self.efforts,
            key=lambda candidate: (abs(LEVELS.index(candidate) - wanted), LEVELS.index(candidate)),
        )

    def thinks(self, level: str | None) -> bool:
        """Return whether a call at `level` thinks before it answers."""
        return (self.effort(level) or self.default_effort) != "none"

    def thinking_tokens(self, level: str | None) -> int:
        """Return how many tokens a call at `level` may think, in addition to its answer."""
        return THINKING_TOKENS.get(self.effort(level) or self.default_effort, 0)

    def seeds(self, seed: int) -> bool:
        """Return whether `seed` may be sent."""
        bits = {"int64": 63, "int32": 31, "none": 0}[self.seed]
        return bits > 0 and -(2**bits) <= seed < 2**bits

    def overlay(self, own: "Accepts") -> "Accepts":
        """Return these parameters, with those that `own` sets replaced."""
        return self.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})
