"""A call to a model: the data that is sent."""

from collections.abc import Mapping
from typing import Any, ClassVar

from conductor.model.messages import NO_TOOLS, Message, Toolset
from conductor.model.operation import NO_OPTIONS, CallKind, WireOptions
from conductor.model.terms import ANY_TERMS, Terms
from conductor.model.value import DefaultingValue, JsonValue, MarkedValue, Value


class AnswerFormat(JsonValue, DefaultingValue, frozen=True):
    """JSON format that the client requires of the answer. Only the answering step has to follow it.

    Args:
        schema: JSON Schema of the answer, or None if any JSON object is valid (OpenAI's `json_object`).
        strict: whether the call fails if the answer does not match `schema`.
    """

    not_hashed: ClassVar[frozenset[str]] = frozenset({"schema"})

    schema: Mapping[str, Any] | None = None
    name: str = "answer"
    description: str = ""
    strict: bool = True


class Grammar(Value, frozen=True):
    """Grammar that the answer must follow, in two languages. A server uses the one that it supports."""

    ebnf: str
    """Grammar in GBNF, for vLLM (xgrammar)."""
    json_schema: dict[str, object] | None = None
    """JSON Schema, for API providers. None if the text is not JSON."""


class Sampling(DefaultingValue, frozen=True):
    """Decoding parameters. None always means the worker's own default."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    effort: str | None = None
    """OpenAI's `reasoning_effort`, for reasoning models."""
    options: WireOptions = NO_OPTIONS
    """Options that only some provider APIs support. A call that sets one is only sent to workers that list it
    in `PoolMember.takes`."""
    top_k: int | None = None
    """Number of most likely tokens to sample from, or 0 to sample from all."""
    min_p: float | None = None
    """Minimum probability of a token, relative to the most likely one."""
    repetition_penalty: float | None = None
    """Above 1: tokens of the prompt and the answer become less likely."""


class CallSite(DefaultingValue, frozen=True):
    """Position of a call in a run, for spans, errors and records. It is never sent to a model.

    It is unique among the calls of a process, including the calls of runs inside runs.
    """

    run: str = ""
    plan: int = 0
    step: int | None = None
    """Index of the step that makes the call, from 0. None for a call that writes a plan."""
    access: tuple[int, ...] = ()
    """Steps whose outputs the call reads."""
    attempt: int = 1
    """Number of the attempt, from 1. It counts each call that replaces a failed or interrupted one, for any worker."""
    operation: CallKind = "chat"
    """Kind of the call: `plan` for a call that writes a plan, otherwise the operation of the step."""


class Call(MarkedValue, frozen=True):
    """One request to one model."""

    not_compared: ClassVar[frozenset[str]] = frozenset({"mark_key", "terms"})

    messages: tuple[Message, ...]
    sampling: Sampling = Sampling()
    grammar: Grammar | None = None
    tools: Toolset = NO_TOOLS
    """Tools that the model may call. Its earlier tool calls and their results are in `messages`."""
    answer_format: AnswerFormat | None = None
    """Format that the client requires of the answer, or None if it accepts any text."""
    coalesce: bool = False
    """True if the answer may arrive in larger pieces, because no client reads it while it streams."""
    site: CallSite = CallSite()
    mark_key: str = ""
    """Word in the tags that enclose other steps' outputs in `messages` (see `conductor.plan.prompt_parts`). Empty if
    there are no such tags."""
    prefix: str = ""
    """Beginning of the answer, which the reader has already received. The model must continue after it."""
    terms: Terms = ANY_TERMS
    """Conditions of the call. They are never sent to a model."""
