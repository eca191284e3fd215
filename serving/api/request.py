"""A request in the form that all dialects share."""

import hashlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from math import ceil
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt
from starlette.requests import Request

from conductor.errors import BadTask, TooLarge, quote
from conductor.model.call import AnswerFormat, Sampling
from conductor.model.characters import check_name_text
from conductor.model.messages import NO_TOOLS, File, Image, Message, Part, Text, ToolCall, Toolset
from conductor.model.operation import Operation, WireOptions
from conductor.model.terms import Priority
from conductor.model.worker import PoolMember
from conductor.plan.plan import OnFailure
from conductor.run.call import file_tokens
from conductor.run.task import Task
from serving.accounts.caller import Caller
from serving.api.encode import dumps
from serving.pool import Pool
from serving.redaction.personal import PersonalDataRedactor
from serving.sessions.deduplication import HEADER, IdempotencyKey

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
"""Rounds on top of the model's own."""
MOST = 1_000_000_000
"""No limit may be larger, so that sums of them still fit into JSON's numbers."""
CHARS_PER_TOKEN, ANSWER_TOKENS = 4, 500
"""Of English, and of an answer of no stated length."""
PICTURE_TOKENS = 1_600
"""What the providers' counts for a picture of usual size come to."""
MOST_PARTS = 20_000
"""Of a conversation, its messages counted with them. A short request may refer to earlier turns or hold compacted ones, and
more of them keep a router busy for seconds.
"""
MOST_NAMES = 1000
"""Workers that a request may name."""


def check_size(messages: Iterable[Message], param: str) -> None:
    """See that a conversation has no more parts than can be worked on at once.

    Raises:
        TooLarge: it has.
    """
    n_parts = 0
    for message in messages:
        n_parts += 1 + sum(1 for _ in message.all_parts)
        if n_parts > MOST_PARTS:
            said = f"The conversation has more than {MOST_PARTS} messages and parts. Send those that matter."
            raise TooLarge(said, param=param)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PlannedStep(_Strict):
    """A step of a plan of the caller's own. An empty subtask is the question as it stands."""

    worker: str
    subtask: str = ""
    access: Annotated[list[StrictInt], Field(fail_fast=True)] | Literal["all"] = Field(
        default_factory=list[int]
    )
    needs: str = ""
    """Why this worker; for the record alone. A plan of `POST /v1/plans` has it and can be sent back as it is."""
    tools: bool = True
    """Whether it may call the request's tools."""
    on_failure: OnFailure | None = None
    """What follows where it fails; null: what `on_step_failure` says."""


NameText = Annotated[str, AfterValidator(check_name_text)]


class Podium(_Strict):
    """What a request may set beyond OpenAI's fields. Limits only ever lower what the model's settings
    allow.
    """

    workers: Annotated[list[str], Field(fail_fast=True)] | None = Field(default=None, max_length=MOST_NAMES)
    exclude_workers: Annotated[list[str], Field(fail_fast=True)] = Field(
        default_factory=list[str], max_length=MOST_NAMES
    )
    max_steps: int | None = Field(default=None, ge=1, le=100)
    rounds: int | None = Field(default=None, ge=1, le=5)
    max_cost_usd: Decimal | None = Field(default=None, gt=0, ge=Decimal("1e-12"), le=MOST)
    max_tokens: int | None = Field(default=None, gt=0, le=MOST)
    deadline_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    progress: Literal["off", "events", "reasoning"] = "off"
    trace: bool = False
    on_step_failure: OnFailure | None = None
    """Where a step fails that others read: `fail` ends the run, `skip` tells those who read it. null: as the model's settings
    say."""
    cache: bool = True
    """An answer that was given to an equal request of the team may be given again, where the settings keep any."""
    keep: bool = False
    """The run goes on when its client leaves."""
    background: bool = False
    """As `keep`, and the answer is the run's id, at once."""
    plan: Annotated[list[PlannedStep], Field(fail_fast=True)] | None = Field(
        default=None, min_length=1, max_length=100
    )


def or_empty(value: Any) -> Any:
    """Null says no more than an empty object."""
    return {} if value is None else value


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """What a caller asks.

    Args:
        model: a model's, a workflow's or a worker's name.
        conversation: at least one message.
        sampling: of the answer.
        effort: how much thought and how many steps it is worth.
        podium: limits of this request, and how its run is shown.
        stream: the answer is wanted while it is written.
        include_usage: a stream ends with the run's usage.
        tools: what the model may call; the client runs them.
        answer_format: what the answer must be; None: any text.
        echo: what the answer repeats of the request, as its dialect writes it.
        operation: what is asked of the worker that `model` names; anything but a chat has no plan.
        priority: whether somebody waits for the answer.
        n: so many answers, each by a run of its own.
        more: further texts to complete, beside the conversation.
        n_beside: so many other answers share its limits of cost and tokens.
        as_base64: vectors are wanted as base64, not as numbers.
        places: where each message of `conversation` came, in the dialect's words; empty: `messages`, one by one.
        left_out: what was sent, is not served and does not change the answer: a line for each, for the record.
        logprobs_field: where it asks for log probabilities.
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
    echo: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    @property
    def choices(self) -> "list[ApiRequest]":
        """A request for each answer that is wanted, in their order."""
        if self.n == 1 and not self.more:
            return [self]
        asked = (self.conversation, *self.more)
        one = replace(self, more=(), n=1, n_beside=len(asked) * self.n - 1)
        return [replace(one, conversation=each) for each in asked for _ in range(self.n)]

    def place(self, message: int, part: int) -> str:
        """Where that part of that message came."""
        return self.places[message] if self.places else f"messages[{message}].content[{part}]"

    @property
    def token_estimate(self) -> int:
        """About how many tokens it takes: its text and one answer. What a team of models takes beside that is
        known when its run has ended.
        """
        return self.text_token_estimate + (self.sampling.max_output_tokens or ANSWER_TOKENS)

    @property
    def input_token_estimate(self) -> int:
        """About how many tokens a model reads that is shown all of it."""
        parts = [part for message in self.conversation for part in message.all_parts]
        pictures = sum(isinstance(part, Image) for part in parts)
        pdfs = sum(file_tokens(part) for part in parts if isinstance(part, File) and part.text is None)
        return max(1, self.text_token_estimate + pictures * PICTURE_TOKENS + pdfs)

    @property
    def text_chars(self) -> int:
        """How much text its messages, its tools and its plan hold."""
        return sum(map(len, self._texts))

    @property
    def text_token_estimate(self) -> int:
        """About how many tokens that is."""
        texts = list(self._texts)
        n_chars = sum(map(len, texts))
        if all(map(str.isascii, texts)):
            return n_chars // CHARS_PER_TOKEN
        return estimate_tokens("".join(texts))

    @property
    def _texts(self) -> Iterator[str]:
        asked = (self.conversation, *self.more)
        for step in self.podium.plan or ():
            yield from (step.subtask, step.needs)
        for conversation in asked:
            for message in conversation:
                if message.thoughts:
                    yield _shape_text(message.thoughts)
                for part in message.all_parts:
                    yield from _texts_of(part)
        for tool in self.tools.tools:
            yield from (tool.name, tool.description)
            yield from (_shape_text(shape) for shape in (tool.parameters, tool.format) if shape)


def estimate_tokens(text: str) -> int:
    """Return about how many tokens `text` takes: rather too many than far too few, whatever its script.

    A token of English is about four characters. Other alphabets take up to one for each character, Chinese, Japanese,
    Korean and Indic scripts up to one and a half, and an emoji up to three. Counted by the length of each character in
    UTF-8, which tells them apart fast enough for a megabyte.
    """
    n_chars, n_bytes = len(text), len(text.encode("utf-8", "surrogatepass"))
    ascii = len(text.encode("ascii", "ignore"))
    astral = len(text.encode("utf-16-le", "surrogatepass")) // 2 - n_chars
    others = n_chars - ascii - astral
    threes = n_bytes - ascii - 4 * astral - 2 * others
    return ceil(ascii / CHARS_PER_TOKEN + (others - threes) + 1.5 * threes + 3 * astral)


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
"""Those that OpenAI's APIs know. Another word is refused: who writes `Flex` or `batch` means to wait, and would not."""
FLEX = "flex"


def priority_of(tier: Tier | None) -> Priority:
    """`flex` can wait; every other tier is how requests are served anyway."""
    return "batch" if tier == FLEX else "interactive"


def tier_of(priority: Priority) -> str:
    """The tier by which a request was served."""
    return FLEX if priority == "batch" else "default"


PATHS = {"chat": "/v1/chat/completions", "text_completion": "/v1/completions", "embeddings": "/v1/embeddings"}
FIELDS = {name: name for name in WireOptions.__struct_fields__} | {"top_logprobs": "logprobs"}
"""What callers of Chat Completions call each option."""


def check_operation(request: ApiRequest, pool: Pool, allowed: Callable[[], Container[str]]) -> None:
    """Whether the name that `request` asks for can be asked for that.

    Args:
        request: that asks.
        pool: who is there.
        allowed: gives the names that the caller may ask.

    Raises:
        BadTask: it cannot; who can is told.
    """
    wanted, name = request.operation, request.model
    member = pool.members.get(name)
    if member is None and wanted == "chat":
        return
    if member is not None and wanted in member.serves:
        if request.podium.plan is not None and wanted != "chat":
            raise BadTask("podium.plan: only a chat has a plan.", param="podium.plan")
        return
    may_ask = allowed()
    able = [each.name for each in pool.members.values() if wanted in each.serves and each.name in may_ask]
    remedy = (
        f"Ask {', '.join(map(quote, able[:5]))}."
        if able
        else "No worker does that you may ask (settings: serves)."
    )
    what = "does not serve" if member else "is no worker, which alone serves"
    raise BadTask(f"model: {quote(name)} {what} {PATHS[wanted]}. {remedy}", param="model")


def check_options(request: ApiRequest, task: Task, members: Iterable[PoolMember]) -> None:
    """Whether everybody who may answer takes the options of the task, which `request` asked for.

    Raises:
        BadTask: naming the field, and who does not.
    """
    asked = task.sampling.options.asked
    if not asked:
        return
    for member in members:
        if left := [name for name in asked if name not in member.takes]:
            raise _not_taken(request, left[0], member.name)


def _not_taken(request: ApiRequest, option: str, worker: str) -> BadTask:
    who = "ask a worker that does by its own name: `podium.takes` of GET /v1/models says which."
    if option == "token_prompt":
        message = f"prompt: {quote(worker)} does not take tokens (`token_prompt`). Send text, or {who}"
        return BadTask(message, param="prompt")
    field = request.logprobs_field if option == "top_logprobs" else FIELDS[option]
    message = f"{field} would change the answer, and {quote(worker)} does not take it. Leave it out, or {who}"
    return BadTask(message, param=field)


MOST_CHARS = 255


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a run outlives its client.

    Args:
        key: the client's name for the request; None: each request is a new one.
        may_change: its answer may be replaced by another one; not if its events are numbered for good.
    """

    key: IdempotencyKey | None
    may_change: bool = True


async def keeping_of(request: Request, caller: Caller, podium: Podium, *, may_change: bool) -> Keeping | None:
    """Return how the run of a request outlives its client, or None if it does not. `may_change`: see `Keeping`.

    Raises:
        BadTask: the `Idempotency-Key` is malformed.
    """
    name = request.headers.get(HEADER)
    if name is not None and not (0 < len(name) <= MOST_CHARS and name.isascii() and name.isprintable()):
        raise BadTask(f"{HEADER} must be 1 to {MOST_CHARS} printable ASCII characters.", param=HEADER)
    if name is None and not (podium.keep or podium.background):
        return None
    if name is None:
        return Keeping(None, may_change)
    body_hash = _digest(request.scope["path"].encode() + b"\0" + await request.body())
    return Keeping(IdempotencyKey(caller.account.key_id, _name_on_record(name), body_hash), may_change)


def _name_on_record(name: str) -> str:
    """Return `name` as it is stored, whatever the policy: an address or a key is stored as its digest. Others stay as they
    are, so that replicas of an earlier version find the same claims.
    """
    return name if PersonalDataRedactor()(name) == name else f"sha256:{_digest(name.encode())}"


def _digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()
