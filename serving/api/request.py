"""A request in the form that all dialects share."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictInt

from conductor.errors import BadTask, TooLarge, quote
from conductor.model.call import AnswerFormat, Sampling
from conductor.model.characters import BYTES_PER_TOKEN, check_name_text, estimate_tokens
from conductor.model.messages import NO_TOOLS, File, Image, Message, Part, Text, ToolCall, Toolset
from conductor.model.operation import NO_OPTIONS, Operation, WireOptions
from conductor.model.terms import Priority
from conductor.model.worker import PoolMember
from conductor.plan.plan import OnFailure
from conductor.run.call_bound import file_tokens
from conductor.run.task import Task
from serving.api.record_json import dumps
from serving.pool import Pool

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORT_STEPS: dict[str, int] = {
    "none": 1,
    "minimal": 1,
    "low": 2,
    "medium": 3,
    "high": 5,
    "xhigh": 5,
    "max": 5,
}
EFFORT_ROUNDS: dict[str, int] = {"xhigh": 1, "max": 1}
"""Number of planning rounds that each level of effort adds to the rounds in the model's settings."""
MOST = 1_000_000_000
"""Upper bound for every limit, so that sums of limits fit into JSON numbers."""
ANSWER_TOKENS = 500
"""Estimated tokens of an answer without a stated length."""
ESTIMATED_TOKENS_PER_IMAGE = 1_600
"""Estimated tokens of a picture of usual size, from the providers' own counts."""
MOST_PARTS = 20_000
"""Maximum messages and parts of a conversation with everything it refers to, which take seconds."""
MOST_NAMES = 1000
"""Maximum number of workers that a request may name."""


def check_size(messages: Iterable[Message], param: str) -> None:
    """Check that a conversation has at most `MOST_PARTS` messages and parts, or raise TooLarge."""
    n_parts = 0
    for each in messages:
        n_parts += 1 + sum(1 for _ in each.all_parts)
        if n_parts > MOST_PARTS:
            message = f"The conversation has more than {MOST_PARTS} messages and parts. Send fewer messages."
            raise TooLarge(message, param=param)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PlannedStep(_Strict):
    """Step of a plan that is part of the request."""

    worker: str = Field(description="Name of the worker.")
    subtask: str = Field(
        default="", description="Task for the worker. If empty, the worker answers the question itself."
    )
    access: Annotated[list[StrictInt], Field(fail_fast=True)] | Literal["all"] = Field(
        default_factory=list[int],
        description="Indexes, from 0, of the earlier steps whose results this step reads, or `all`.",
    )
    needs: str = Field(
        default="",
        description="Reason for choosing this worker. It is only stored in the record. `POST /v1/plans` returns it, so that "
        "its plan can be sent back unchanged.",
    )
    tools: bool = Field(default=True, description="Whether the step may call the tools of the request.")
    on_failure: OnFailure | None = Field(
        default=None, description="What happens if the step fails. If null, `on_step_failure` applies."
    )


NameText = Annotated[str, AfterValidator(check_name_text)]


class Podium(_Strict):
    """Options beyond OpenAI's fields. Limits can only lower those of the model's settings, except `rounds`."""

    workers: Annotated[list[str], Field(fail_fast=True)] | None = Field(
        default=None,
        max_length=MOST_NAMES,
        description="Names of the workers that the run may call. If null, the model's settings apply.",
    )
    exclude_workers: Annotated[list[str], Field(fail_fast=True)] = Field(
        default_factory=list[str],
        max_length=MOST_NAMES,
        description="Names of workers that the run must not call.",
    )
    max_steps: int | None = Field(
        default=None, ge=1, le=100, description="Maximum number of steps in a plan."
    )
    rounds: int | None = Field(default=None, ge=1, le=5, description="Maximum number of planning rounds.")
    max_cost_usd: Decimal | None = Field(
        default=None,
        gt=0,
        ge=Decimal("1e-12"),
        le=MOST,
        description="Maximum cost of the run, in dollars. The run ends before it exceeds this limit.",
    )
    max_tokens: int | None = Field(
        default=None,
        gt=0,
        le=MOST,
        description="Maximum number of tokens of all calls of the run together. The run ends before it exceeds this limit.",
    )
    deadline_s: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="Time limit of the run, in seconds."
    )
    progress: Literal["off", "events", "reasoning"] = Field(
        default="off",
        description="How a stream reports the plan and its progress. `off`: not at all. `events`: as JSON objects in "
        "`podium`. `reasoning`: as reasoning text.",
    )
    trace: bool = Field(
        default=False, description="Whether `podium` in the response contains all steps in full."
    )
    on_step_failure: OnFailure | None = Field(
        default=None,
        description="What happens if a step fails whose result other steps read. `fail`: the run fails. `skip`: those "
        "steps receive a note instead of the result. If null, the model's settings apply.",
    )
    cache: bool = Field(
        default=True,
        description="Whether the answer to an earlier identical request of the same team may be reused, if the settings "
        "allow it.",
    )
    keep: bool = Field(default=False, description="Whether the run continues if its client disconnects.")
    background: bool = Field(
        default=False,
        description="Like `keep`. Without `stream`, the response is sent immediately and contains the id of the run.",
    )
    plan: Annotated[list[PlannedStep], Field(fail_fast=True)] | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="Plan to run, instead of one that the conductor writes.",
    )
    conversation: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Name of the conversation. Turns with the same name and API key keep their worker and its prompt "
        "cache. If null, Podium uses `conversation`, `previous_response_id`, `prompt_cache_key` or the session in "
        "`metadata.user_id`, or else the first messages.",
    )


def or_empty(value: Any) -> Any:
    """Return an empty object for null, which means the same."""
    return {} if value is None else value


PodiumField = Annotated[Podium, BeforeValidator(or_empty), Field(default_factory=Podium)]
"""Field `podium` of a request."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """Request of a client, independent of its dialect.

    Args:
        conversation: messages, at least one.
        effort: reasoning effort. It also bounds the number of steps.
        podium: options beyond OpenAI's fields, such as limits and how the run is shown.
        include_usage: whether a stream ends with the usage of the run.
        tools: tools that the model may call; the client runs them.
        answer_format: format that the answer must have, or None if any text is valid.
        operation: operation of the worker `model`. Only a chat has a plan.
        n: number of answers, each with a run of its own.
        more: further prompts to complete, in addition to `conversation`.
        n_beside: number of other answers that share the request's limits of cost and tokens.
        as_base64: whether to return embeddings as base64 instead of numbers.
        places: request field of each message, for error messages, or empty for `messages[i].content[j]`.
        left_out: a line for each field that was ignored because it does not change the answer, for the
            record.
        logprobs_field: request field that asks for log probabilities.
        conversation_name: name of the conversation, with the kind of the field that it comes from, or "" if
            the first messages identify it.
    """

    model: str
    conversation: tuple[Message, ...]
    sampling: Sampling
    effort: Effort | None
    podium: Podium
    stream: bool
    include_usage: bool
    tools: Toolset = NO_TOOLS
    answer_format: AnswerFormat | None = None
    operation: Operation = "chat"
    priority: Priority = "interactive"
    n: int = 1
    more: tuple[tuple[Message, ...], ...] = ()
    n_beside: int = 0
    as_base64: bool = False
    places: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    logprobs_field: str = "logprobs"
    conversation_name: str = ""
    echo: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    @property
    def choices(self) -> "list[ApiRequest]":
        """One request per answer, in the order of the answers."""
        if self.n == 1 and not self.more:
            return [self]
        conversations = (self.conversation, *self.more)
        one = replace(self, more=(), n=1, n_beside=len(conversations) * self.n - 1)
        return [replace(one, conversation=each) for each in conversations for _ in range(self.n)]

    def place(self, message: int, part: int) -> str:
        return self.places[message] if self.places else f"messages[{message}].content[{part}]"

    @property
    def names_files(self) -> bool:
        parts = (part for message in self.conversation for part in message.all_parts)
        return any(isinstance(part, File) and part.id for part in parts)

    @property
    def has_tool_results(self) -> bool:
        return any(message.tool_results for message in self.conversation)

    @property
    def token_estimate(self) -> int:
        """Estimated tokens of the text and one answer. A plan's are known only at the end."""
        return self.text_token_estimate + (self.sampling.max_output_tokens or ANSWER_TOKENS)

    @property
    def input_token_estimate(self) -> int:
        """Estimated input tokens of a model that reads the whole request with attachments, at least 1."""
        return max(1, self.text_token_estimate + self._attachment_tokens)

    @property
    def _attachment_tokens(self) -> int:
        parts = [part for message in self.conversation for part in message.all_parts]
        pictures = sum(isinstance(part, Image) for part in parts)
        pdfs = sum(file_tokens(part) for part in parts if isinstance(part, File) and part.text is None)
        return pictures * ESTIMATED_TOKENS_PER_IMAGE + pdfs

    @property
    def text_chars(self) -> int:
        """Number of characters in the messages, the tools and the plan."""
        return sum(map(len, self._texts))

    @property
    def text_token_estimate(self) -> int:
        texts = list(self._texts)
        if all(map(str.isascii, texts)):
            return sum(map(len, texts)) // BYTES_PER_TOKEN
        return estimate_tokens("".join(texts))

    @property
    def _texts(self) -> Iterator[str]:
        for step in self.podium.plan or ():
            yield from (step.subtask, step.needs)
        for conversation in (self.conversation, *self.more):
            yield from texts_of(conversation)
        for tool in self.tools.tools:
            yield from (tool.name, tool.description)
            yield from (_shape_text(shape) for shape in (tool.parameters, tool.format) if shape)


def texts_of(messages: Iterable[Message]) -> Iterator[str]:
    """Return the texts that count towards `limits.max_text_bytes`."""
    for message in messages:
        if message.thoughts:
            yield _shape_text(message.thoughts)
        for part in message.all_parts:
            yield from _texts_of(part)


def _texts_of(part: Part) -> tuple[str, ...]:
    match part:
        case Text():
            return (part.text,)
        case File():
            return (part.text or "",)
        case ToolCall():
            return part.name, part.arguments
        case _:
            return ()


def _shape_text(shape: Mapping[str, Any]) -> str:
    return dumps(shape).decode()


Tier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
"""Service tiers of OpenAI's APIs. Others, such as `Flex`, would silently have no effect, and are rejected."""
FLEX = "flex"


def priority_of(tier: Tier | None) -> Priority:
    """Return the priority of a service tier. Only a request with the tier `flex` can wait."""
    return "batch" if tier == FLEX else "interactive"


def tier_of(priority: Priority) -> str:
    return FLEX if priority == "batch" else "default"


PATHS = {"chat": "/v1/chat/completions", "text_completion": "/v1/completions", "embeddings": "/v1/embeddings"}
FIELDS = {name: name for name in WireOptions.__struct_fields__} | {"top_logprobs": "logprobs"}
"""Request fields of Chat Completions, by the name of the option in `WireOptions`."""


def check_operation(request: ApiRequest, pool: Pool, allowed: Callable[[], Container[str]]) -> None:
    """Check that the named model supports the operation. The BadTask suggests some of the `allowed`."""
    operation, name = request.operation, request.model
    member = pool.members.get(name)
    if member is None and operation == "chat":
        return
    if member is not None and operation in member.serves:
        if request.podium.plan is not None and operation != "chat":
            raise BadTask("podium.plan is only supported for chat requests. Remove it.", param="podium.plan")
        return
    may_ask = allowed()
    able = [each.name for each in pool.members.values() if operation in each.serves and each.name in may_ask]
    remedy = (
        f"Use {', '.join(map(quote, able[:5]))}."
        if able
        else "None of the workers that you may call supports this endpoint (setting `serves`)."
    )
    what = "does not support" if member else "is not a worker, and only workers support"
    raise BadTask(f"model: {quote(name)} {what} {PATHS[operation]}. {remedy}", param="model")


def check_options(request: ApiRequest, task: Task, members: Iterable[PoolMember]) -> None:
    """Check that every worker that may answer supports the task's options. `param` names the field."""
    if task.sampling.options == NO_OPTIONS:
        return
    options = task.sampling.options.set_options
    for member in members:
        if unsupported := [name for name in options if name not in member.takes]:
            raise _not_taken(request, unsupported[0], member.name)


def _not_taken(request: ApiRequest, option: str, worker: str) -> BadTask:
    remedy = (
        "use a worker that supports it. GET /v1/models lists the options of each worker as `podium.takes`."
    )
    if option == "token_prompt":
        message = f"prompt: worker {quote(worker)} does not accept token ids (`token_prompt`). Send text, or {remedy}"
        return BadTask(message, param="prompt")
    field = request.logprobs_field if option == "top_logprobs" else FIELDS[option]
    message = f"{field} is not supported by worker {quote(worker)}. Remove it, or {remedy}"
    return BadTask(message, param=field)
