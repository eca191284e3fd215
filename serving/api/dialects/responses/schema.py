"""Body of `POST /v1/responses`, except its input items (`items.py`).

Unknown fields are ignored. Known fields that are not supported and would change the answer are rejected by
name.
"""

from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from conductor.errors import BadTask
from conductor.model.operation import WireOptions
from serving.api.dialects.chat.schema import MOST_PARTS, Penalty, SamplerFields
from serving.api.dialects.read_body import CacheFields, ExtraFields, LenientModel, innermost
from serving.api.request import MOST, Effort, NameText, Podium, PodiumField, Tier, or_empty
from serving.errors import explain_fault

Json = dict[str, Any]
UNSERVED = ("prompt", "moderation")
"""Unsupported fields, which would change the answer unless they are empty."""
WITHOUT_EFFECT = {"access_programs", "context_management", "image", "stream_options"}
"""Known fields that are ignored. Like unknown fields, they are listed in the record. They concern price,
speed or format.
"""
PACKED = ("compaction", "compaction_summary")
"""Types of items that contain other messages. Unpacking them takes up to a second, so do it in a thread."""
LOGPROBS = "message.output_text.logprobs"


class Reasoning(LenientModel):
    """Effort for reasoning, and whether to show it."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None

    @property
    def is_shown(self) -> bool:
        """True if the client wants to see the plan and its progress as reasoning."""
        return bool(self.summary or self.generate_summary)


class TextFormat(LenientModel):
    """Format of the answer."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = Field(default="answer", pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    schema_: Json | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(LenientModel):
    """Options for the text of the answer."""

    format: Annotated[TextFormat, BeforeValidator(or_empty)] = TextFormat()
    verbosity: Literal["low", "medium", "high"] | None = None


Input = str | Annotated[list[Json], Field(fail_fast=True, max_length=MOST_PARTS)]


def _conversation_id(value: Any) -> Any:
    """Return the id of a conversation. OpenAI accepts an id, or an object with one."""
    return cast(Json, value).get("id", value) if isinstance(value, dict) else value


class Referred(LenientModel):
    """Fields that all requests about a conversation have: to answer it, to count its tokens and to compact
    it.
    """

    input: Input = Field(default_factory=list[Json])
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Annotated[
        str | None, BeforeValidator(_conversation_id, json_schema_input_type=str | Json | None)
    ] = None

    @property
    def is_packed(self) -> bool:
        """True if an item contains other messages, which takes long to unpack."""
        return not isinstance(self.input, str) and any(item.get("type") in PACKED for item in self.input)

    @property
    def refers(self) -> bool:
        """True if the request refers to texts that have to be loaded or unpacked."""
        is_earlier = bool(self.conversation) or self.previous_response_id is not None
        items = [] if isinstance(self.input, str) else self.input
        return is_earlier or self.is_packed or any(item.get("type") == "item_reference" for item in items)


class ResponsesRequest(Referred, SamplerFields, CacheFields, ExtraFields):
    """Body of `POST /v1/responses`."""

    model: str
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    include: Annotated[list[str], Field(fail_fast=True, max_length=64)] | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=MOST)
    max_tool_calls: int | None = Field(default=None, ge=1, le=MOST)
    metadata: (
        Annotated[dict[NameText, Annotated[NameText, Field(max_length=512)]], Field(max_length=16)] | None
    ) = None
    parallel_tool_calls: bool | None = None
    reasoning: Annotated[Reasoning, BeforeValidator(or_empty)] = Reasoning()
    safety_identifier: str | None = None
    service_tier: Tier | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    text: Annotated[TextOptions, BeforeValidator(or_empty)] = TextOptions()
    tools: Annotated[list[Json], Field(fail_fast=True, max_length=1024)] | None = None
    tool_choice: str | Json | None = None
    top_p: float | None = Field(default=None, gt=0, le=1)
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None
    podium: PodiumField
    prompt: Any = None
    moderation: Any = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None

    @property
    def stores(self) -> bool:
        """True if the response is stored, which is the default."""
        return self.store is not False

    @property
    def shows_encrypted(self) -> bool:
        """True if reasoning items have `encrypted_content`."""
        return "reasoning.encrypted_content" in (self.include or ())

    @property
    def options(self) -> WireOptions:
        """Options that are set and not neutral."""
        wants_logprobs = LOGPROBS in (self.include or ()) or self.top_logprobs
        return WireOptions(
            self.frequency_penalty or None,
            self.presence_penalty or None,
            top_logprobs=(self.top_logprobs or 0) if wants_logprobs else None,
            prompt_cache=self.prompt_cache,
        )


Kind = TypeVar("Kind", bound=BaseModel)


def read_part(kind: type[Kind], value: object, at: str) -> Kind:
    """Parse the part of a request at the place `at`.

    Raises:
        BadTask: a field is invalid. The message names it as the client wrote it.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as exc:
        inside, fault = innermost(exc.errors(include_url=False, include_context=False), value)
        param = f"{at}.{inside}" if inside else at
        raise BadTask(f"{explain_fault(param, fault)}.", param=param) from exc


def remedy(param: str, _: object) -> str:
    """Return advice to append to the error for `param`, or "" if there is none."""
    if param.startswith("podium.") and param.count(".") == 1:
        return f" Fields of `podium`: {', '.join(Podium.model_fields)}."
    remedies = {"model": " GET /v1/models lists the names.", "input": " Send text, or a list of items."}
    return remedies.get(param, "")


def check_served(request: ResponsesRequest) -> None:
    """Check that no unsupported field of a request would change the answer.

    Raises:
        BadTask: an unsupported field would change the answer, or `background` and `store` contradict each
            other.
    """
    for name in UNSERVED:
        if getattr(request, name):
            raise BadTask(
                f"{name} is not supported, and ignoring it would change the answer. Remove it.", param=name
            )
    if request.background and not request.stores:
        raise BadTask("background requires a stored response. Remove `store: false`.", param="background")
