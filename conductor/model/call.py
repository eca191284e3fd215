"""A call of a model: what is sent."""

from collections.abc import Mapping
from typing import Any, ClassVar

from conductor.model.messages import NO_TOOLS, Message, Toolset
from conductor.model.operation import NO_OPTIONS, CallKind, WireOptions
from conductor.model.terms import ANY_TERMS, Terms
from conductor.model.value import DefaultingValue, JsonValue, MarkedValue, Value


class AnswerFormat(JsonValue, DefaultingValue, frozen=True):
    """JSON in place of any text. Only the answering step is bound by it.

    Args:
        schema: JSON Schema of the answer; None: any JSON object (OpenAI's `json_object`).
        name: of the schema, for providers that want one.
        description: of the schema, for the model.
        strict: an answer that does not hold to `schema` is an error, never a success.
    """

    not_hashed: ClassVar[frozenset[str]] = frozenset({"schema"})

    schema: Mapping[str, Any] | None = None
    name: str = "answer"
    description: str = ""
    strict: bool = True


class Grammar(Value, frozen=True):
    """What the answer must look like, in the two languages that servers understand.

    `ebnf` is GBNF as xgrammar reads it (vLLM); `json_schema` is what API providers take (None where the
    text is not JSON). Both accept only texts that `conductor.plan.formats` parses into a plan that can run.
    """

    ebnf: str
    json_schema: dict[str, object] | None = None


class Sampling(DefaultingValue, frozen=True):
    """How an answer is decoded. None always means: the worker's own default."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    effort: str | None = None
    """OpenAI's `reasoning_effort`, for models that reason."""
    options: WireOptions = NO_OPTIONS
    """What only some wires take: only members of whose pool entry it is said are asked (`PoolMember.takes`)."""
    top_k: int | None = None
    """So many of the likeliest tokens are drawn from; 0: from all."""
    min_p: float | None = None
    """Tokens are drawn from that are at least so probable, relative to the likeliest."""
    repetition_penalty: float | None = None
    """Above 1, tokens of prompt and answer become less probable."""


class CallSite(DefaultingValue, frozen=True):
    """Which call of which run this is: unique among the calls that a process makes, those of runs inside runs
    included. For spans, errors and records; never sent.
    """

    run: str = ""
    plan: int = 0
    step: int | None = None
    """The step that asks, from 0; None for the plan itself."""
    access: tuple[int, ...] = ()
    """The steps that it reads."""
    attempt: int = 1
    """From 1, one more for each call made in place of one that failed or was cut, whichever worker it
    asks."""
    operation: CallKind = "chat"
    """What the call is for: a step of a plan, or the plan itself."""


class Call(MarkedValue, frozen=True):
    """One question to one model."""

    not_compared: ClassVar[frozenset[str]] = frozenset({"mark_key", "terms"})

    messages: tuple[Message, ...]
    sampling: Sampling = Sampling()
    grammar: Grammar | None = None
    tools: Toolset = NO_TOOLS
    """What it may call. Its own calls so far, and what they gave, are in `messages`."""
    answer_format: AnswerFormat | None = None
    """What the answer must be, in the client's words; None: any text."""
    coalesce: bool = False
    """Nobody reads the answer while it is written, so it may come in larger pieces."""
    site: CallSite = CallSite()
    mark_key: str = ""
    """Key of the marks around other steps' outputs in `messages`, for programs that read them. Empty: no marks."""
    prefix: str = ""
    """How the answer begins, which its reader has: what comes after it is wanted, and nothing of it again."""
    terms: Terms = ANY_TERMS
    """Conditions of the call; never sent."""
