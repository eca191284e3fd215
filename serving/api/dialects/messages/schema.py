"""Body of Anthropic's `POST /v1/messages`, with a `podium` object.

Unknown fields are ignored, because agents send fields of the newest betas. Unsupported fields that would
change the answer are rejected by name, and so are unknown fields of `podium`.
"""

import json
import re
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from conductor.model.call import AnswerFormat
from serving.api.answer_format import read_schema
from serving.api.dialects.chat.schema import MOST_PARTS, StopSequences
from serving.api.dialects.messages.blocks import MOST_BLOCKS, Block, Json, TextBlock
from serving.api.dialects.messages.tools import ToolFields
from serving.api.dialects.read_body import ExtraFields, LenientModel, MarkFields, read_body
from serving.api.request import MOST, Effort, Podium, PodiumField

WITHOUT_EFFECT = frozenset({
    "container", "context_management", "diagnostics", "inference_geo", "service_tier", "speed",
    "user_profile_id", "workspace_id",
})  # fmt: skip
"""Known fields that are ignored. Like unknown fields, they are listed in the record. They concern storage,
price, speed, accounting or hosted tools.
"""
MOST_SESSION_CHARS, MOST_USER_ID_CHARS = 200, 2_000
"""Maximum lengths of a session, and of a `metadata.user_id` that is searched for one."""
_OLD_SESSION = re.compile(r"_session_([0-9a-fA-F-]{36})$")
Words = str | Annotated[list[TextBlock], Field(max_length=MOST_BLOCKS, fail_fast=True)]


class MessageParam(LenientModel):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Field(max_length=MOST_BLOCKS, fail_fast=True)]


class Thinking(LenientModel):
    """Options for reasoning."""

    type: Literal["enabled", "adaptive", "disabled", "between_tools"]
    display: Literal["summarized", "omitted"] | None = None

    @property
    def is_shown(self) -> bool:
        """True if the client wants to receive the reasoning."""
        return self.type != "disabled" and self.display != "omitted"


class JsonFormat(LenientModel):
    """JSON Schema that the answer must match."""

    type: Literal["json_schema"]
    schema_: Json = Field(alias="schema")

    def read(self, param: str) -> AnswerFormat:
        """Return the format in the form that all dialects share. `param` is its place in the request."""
        return read_schema(self.schema_, None, strict=True, param=param, any_root=True)


class OutputConfig(LenientModel):
    """Effort for the answer, and its format."""

    effort: Effort | None = None
    format: JsonFormat | None = None


class Prompt(ToolFields, MarkFields):
    """Body of `POST /v1/messages/count_tokens`."""

    model: str
    messages: Annotated[list[MessageParam], Field(fail_fast=True)] = Field(
        min_length=1, max_length=MOST_PARTS
    )
    system: Words | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    """Older name of `output_config.format`."""

    @property
    def answer_format(self) -> AnswerFormat | None:
        """The answer format, or None. Raises `BadTask` if the schema is not accepted."""
        if self.output_config is not None and self.output_config.format is not None:
            return self.output_config.format.read("output_config.format")
        return self.output_format.read("output_format") if self.output_format else None


class MessagesRequest(Prompt, ExtraFields):
    """Body of `POST /v1/messages`."""

    max_tokens: int = Field(ge=1, le=MOST)
    stream: bool | None = False
    stop_sequences: StopSequences | None = None
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, lt=2**31)
    metadata: Any = None
    """Data about the request. Only the session in `user_id` is used: it names the conversation."""
    podium: PodiumField

    @property
    def session(self) -> str:
        """Claude Code's session, or "" if there is none."""
        user_id = cast(Json, self.metadata).get("user_id") if isinstance(self.metadata, dict) else None
        return session_of(user_id) if isinstance(user_id, str) else ""

    @property
    def _unread(self) -> dict[str, Any]:
        unused = {} if self.session else {"metadata": self.metadata}
        return unused | super()._unread

    @property
    def shown(self) -> Podium:
        """The options in `podium`. If the client wants reasoning and does not set `progress`, the options
        show progress as reasoning.
        """
        asks = self.thinking is not None and self.thinking.is_shown
        if not asks or "progress" in self.podium.model_fields_set:
            return self.podium
        return self.podium.model_copy(update={"progress": "reasoning"})


def session_of(user_id: str) -> str:
    """Return the session in Claude Code's `metadata.user_id`, or "" if there is none.

    Newer versions send JSON with a `session_id`. Older ones send `user_..._session_` and a UUID.
    """
    if len(user_id) > MOST_USER_ID_CHARS:
        return ""
    try:
        value: Any = json.loads(user_id)
    except (ValueError, RecursionError):
        match = _OLD_SESSION.search(user_id)
        return match[1] if match else ""
    session = cast(Json, value).get("session_id") if isinstance(value, dict) else None
    return session if isinstance(session, str) and len(session) <= MOST_SESSION_CHARS else ""


def read(body: bytes) -> MessagesRequest:
    """Parse a request.

    Raises:
        BadTask: a field is invalid. The message names it as the client wrote it.
    """
    return read_body(MessagesRequest, body, _remedy)


def read_prompt(body: bytes) -> Prompt:
    """Parse the body of a token-count request. It raises the same errors as `read`."""
    return read_body(Prompt, body, _remedy)


def _remedy(param: str, value: object) -> str:
    if value == "function" and param.startswith("tools["):
        return ' Send tools as {"name": "...", "input_schema": {...}}.'
    return {
        "messages": ' Send at least one message, such as {"role": "user", "content": "..."}.',
        "model": " GET /v1/models lists the names.",
        "max_tokens": " Set the maximum number of tokens in the answer.",
    }.get(param, "")
