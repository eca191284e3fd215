"""OpenAI's fields for what only some wires take, the number of answers, and the fields that change no answer."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from conductor.model.operation import TokenBias, WireOptions
from conductor.model.priority import Priority
from serving.api.dialects.read_body import NEUTRAL, ExtraFields
from serving.api.service_tier import Tier, priority_of

MOST_CHOICES = 8
MOST_BIASES = 1024
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenNumber = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]


class WireFields(BaseModel):
    """What only some wires take; a worker that does not is never asked (`serving/api/wire_options.py`)."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenNumber, Bias], Field(max_length=MOST_BIASES)] | None = None

    @property
    def penalties(self) -> WireOptions:
        """Those of them that are not neutral."""
        bias = tuple(TokenBias(*each) for each in (self.logit_bias or {}).items() if each[1])
        return WireOptions(self.frequency_penalty or None, self.presence_penalty or None, bias or None)


class SamplerFields(BaseModel):
    """What vLLM and OpenRouter take beside OpenAI's; of a model that does not, it is left out and noted."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None

    @property
    def samplers(self) -> dict[str, Any]:
        """Those that were sent, as `Sampling` names them; vLLM's -1 is 0."""
        top_k = None if self.top_k is None else max(0, self.top_k)
        return {"top_k": top_k, "min_p": self.min_p, "repetition_penalty": self.repetition_penalty}


class ChatOptionFields(WireFields, SamplerFields):
    """Those of a chat."""

    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, top: int | None, info: ValidationInfo) -> int | None:
        if top and not info.data.get("logprobs"):
            raise ValueError("needs `logprobs: true`")
        return top

    @property
    def options(self) -> WireOptions:
        """Those that ask for something."""
        own = self.penalties
        return WireOptions(
            own.frequency_penalty,
            own.presence_penalty,
            own.logit_bias,
            (self.top_logprobs or 0) if self.logprobs else None,
            None if self.verbosity == "medium" else self.verbosity,
        )


class TierFields(BaseModel):
    """How soon the answer is wanted."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    service_tier: Tier | None = None

    @property
    def priority(self) -> Priority:
        """See `priority_of`."""
        return priority_of(self.service_tier)


class NotedFields(ExtraFields):
    """Fields that change no answer."""

    metadata: Any = None
    prediction: Any = None
    safety_identifier: Any = None
    store: Any = None
    user: Any = None

    @property
    def noted(self) -> tuple[str, ...]:
        """A line for each that was sent, unknown ones too. Never its value: that may be about a person."""
        sent = (name for name in NotedFields.model_fields if getattr(self, name) not in NEUTRAL)
        return (*(f"{name} has no effect here." for name in sent), *self.extras)
