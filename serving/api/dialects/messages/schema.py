"""Anthropic's body of `POST /v1/messages`, and `podium` in it.

Unknown fields are ignored, because agents send what the newest betas know; what would change the answer and is
not served is rejected by name, and so are unknown `podium` fields.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from conductor.model.call import AnswerFormat
from serving.api.answer_format import read_schema
from serving.api.dialects.chat.schema import MOST_PARTS, MOST_STOP_CHARS
from serving.api.dialects.messages.blocks import MOST_BLOCKS, Block, Ignoring, Json, TextBlock
from serving.api.dialects.messages.tools import ToolFields
from serving.api.dialects.read_body import ExtraFields, MarkFields, read_body
from serving.api.request import MOST, Effort, Podium

WITHOUT_EFFECT = frozenset(
    {
        "container",
        "context_management",
        "diagnostics",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
"""Known, and noted like unknown ones: they are about storage, price, speed or accounting, or about what only hosted tools do."""
Words = str | Annotated[list[TextBlock], Field(max_length=MOST_BLOCKS, fail_fast=True)]


class MessageParam(Ignoring):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Field(max_length=MOST_BLOCKS, fail_fast=True)]


class Thinking(Ignoring):
    """Whether thoughts are shown."""

    type: Literal["enabled", "adaptive", "disabled", "between_tools"]
    display: Literal["summarized", "omitted"] | None = None

    @property
    def is_shown(self) -> bool:
        """Whether the client wants to read them."""
        return self.type != "disabled" and self.display != "omitted"


class JsonFormat(Ignoring):
    """What the answer must hold to."""

    type: Literal["json_schema"]
    schema_: Json = Field(alias="schema")

    def read(self, param: str) -> AnswerFormat:
        """It, as every dialect says it; `param` is where it came."""
        return read_schema(self.schema_, None, strict=True, param=param, any_root=True)


class OutputConfig(Ignoring):
    """How much effort the answer is worth, and what it must be."""

    effort: Effort | None = None
    format: JsonFormat | None = None


def _or_empty(value: Any) -> Any:
    return {} if value is None else value


class Prompt(ToolFields, MarkFields):
    """What is counted by `POST /v1/messages/count_tokens`."""

    model: str
    messages: Annotated[list[MessageParam], Field(fail_fast=True)] = Field(
        min_length=1, max_length=MOST_PARTS
    )
    system: Words | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    """The older place of `output_config.format`."""

    @property
    def answer_format(self) -> AnswerFormat | None:
        """What the answer must be; raises BadTask where that is no schema that is taken."""
        if self.output_config is not None and self.output_config.format is not None:
            return self.output_config.format.read("output_config.format")
        return self.output_format.read("output_format") if self.output_format else None


class MessagesRequest(Prompt, ExtraFields):
    """The body of `POST /v1/messages`."""

    max_tokens: int = Field(ge=1, le=MOST)
    stream: bool | None = False
    stop_sequences: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=MOST_STOP_CHARS)]],
            Field(max_length=16, fail_fast=True),
        ]
        | None
    ) = None
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, lt=2**31)
    podium: Annotated[Podium, BeforeValidator(_or_empty)] = Field(default_factory=Podium)

    @property
    def shown(self) -> Podium:
        """`podium`; who asks for thoughts, and says no more, is told of the run's progress in them."""
        asks = self.thinking is not None and self.thinking.is_shown
        if not asks or "progress" in self.podium.model_fields_set:
            return self.podium
        return self.podium.model_copy(update={"progress": "reasoning"})


def read(body: bytes) -> MessagesRequest:
    """The request in `body`.

    Raises:
        BadTask: naming the field, in the caller's spelling, and what it may be.
    """
    return read_body(MessagesRequest, body, _remedy)


def read_prompt(body: bytes) -> Prompt:
    """What is to be counted; raises as `read` does."""
    return read_body(Prompt, body, _remedy)


def _remedy(param: str, given: object) -> str:
    if given == "function" and param.startswith("tools["):
        return ' A tool of Messages is {"name": "...", "input_schema": {...}}.'
    return {
        "messages": ' Send at least one message, such as {"role": "user", "content": "..."}.',
        "model": " GET /v1/models lists the names.",
        "max_tokens": " Say how long the answer may be.",
    }.get(param, "")
