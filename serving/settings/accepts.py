"""What a model accepts of a call: which parameters, within which bounds. Knows no model; `known_models.py`
does.
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
"""How many tokens of thought a level is given beside the answer. Ours: no provider states them."""


class Accepts(BaseModel):
    """What a model accepts. A field's default is what an unknown model is taken to accept: everything."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sampling: Literal["always", "unless_thinking", "never"] = "always"
    """When `temperature` and `top_p` may be sent."""
    max_temperature: float = Field(default=2.0, gt=0)
    """A higher `temperature` is lowered to it."""
    temperature_with_top_p: bool = True
    """Whether both may be sent at once; where not, `temperature` is."""
    stop_sequences: int = Field(default=16, ge=0)
    """How many stop sequences may be sent. Podium itself cuts the answer at the others."""
    blank_stop_sequences: bool = True
    """Whether a stop sequence may be white space only."""
    seed: Literal["int64", "int32", "none"] = "int64"
    """How large a `seed` may be; `none`: it must not be sent."""
    samplers: tuple[Literal["top_k", "min_p", "repetition_penalty"], ...] = (
        "top_k",
        "min_p",
        "repetition_penalty",
    )
    """Which of these may be sent, where `temperature` may be. OpenAI's own models take none, Anthropic's and Google's
    `top_k`."""
    efforts: tuple[str, ...] | None = None
    """The levels of effort it knows: another one becomes the nearest of them. Empty: none may be sent. null:
    any word may."""
    default_effort: str = "none"
    """How long it thinks where a call does not say; `none`: it does not think."""
    json_schema: bool = True
    """Whether its answer can be held to a JSON schema."""
    prefill: bool = False
    """Whether it goes on with an assistant's turn at the end of a conversation, so that an answer that broke off goes on
    from its last character (kind `openai`: with vLLM's `continue_final_message`). Never while it thinks."""
    verbosity: bool = False
    """Whether `verbosity` may be sent (kind `openai`)."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    """No answer may be asked to be longer; null: nobody said."""
    output_limit_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    """What the longest answer is called (kind `openai`). null: `max_completion_tokens` at api.openai.com,
    `max_tokens` elsewhere."""

    def effort(self, level: str | None) -> str | None:
        """The level to send for `level`: itself, the nearest that the model knows, or None for no level."""
        if level is None or self.efforts is None or level in self.efforts:
            return level
        if level not in LEVELS or not self.efforts:
            return None
        wanted = LEVELS.index(level)
        return min(self.efforts, key=lambda known: (abs(LEVELS.index(known) - wanted), LEVELS.index(known)))

    def thinks(self, level: str | None) -> bool:
        """Whether a call at `level` thinks before it answers."""
        return (self.effort(level) or self.default_effort) != "none"

    def thinking_tokens(self, level: str | None) -> int:
        """How many tokens a call at `level` may think beside its answer."""
        return THINKING_TOKENS.get(self.effort(level) or self.default_effort, 0)

    def seeds(self, seed: int) -> bool:
        """Whether `seed` may be sent."""
        bits = {"int64": 63, "int32": 31, "none": 0}[self.seed]
        return bits > 0 and -(2**bits) <= seed < 2**bits

    def overlay(self, own: "Accepts") -> "Accepts":
        """This, with what `own` states in place."""
        return self.model_copy(update={name: getattr(own, name) for name in own.model_fields_set})
