"""A model in a vLLM engine, reached through whatever carries an `EngineCall` to it.

Knows what crosses the border to an engine's replica; does not know Ray, nor vLLM. The other side is
`serving/deployments/engine.py`, what carries it there `serving/deployments/handle.py`.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

from conductor.errors import WorkerError, WorkerRefused
from conductor.model.call import AnswerFormat, Call, Sampling
from conductor.model.messages import NO_TOOLS, Image, Message, Native, Text
from conductor.model.operation import TOKENS_GONE, TokenLogprob, read_tokens
from conductor.model.reply import Delta, FinishReason, Reply, open_reply
from conductor.model.terms import Places, Priority
from conductor.model.usage import FREE, Price, Usage
from conductor.plan.marks import with_stable_system
from conductor.plan.prompts import with_tools_as_text
from serving.workers.chat_tools import messages_json, tools_json
from serving.workers.own_turns import Origin
from serving.workers.patience import USUAL, Patience
from serving.workers.wire_tools import WireTools


@dataclass(frozen=True, slots=True)
class EngineCall:
    """What crosses to the replica: a conversation in OpenAI's form, and how to decode.

    `messages` is named so that Ray Serve's prefix-affinity router finds the prompt.
    """

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    ebnf: str | None = None
    answer_format: AnswerFormat | None = None
    """Of an answer that is JSON; a call has this or `ebnf`."""
    adapter: str | None = None
    """Where a LoRA adapter is, under a name that is never used twice: see `serving.lora.adapters`."""
    gap_s: float = 0.0
    """The least time between two messages of the answer; the first and the last do not wait."""
    is_text: bool = False
    """The words of `messages` are the prompt as they stand: no chat template is laid around them."""
    tokens: tuple[int, ...] = ()
    """The prompt in place of `messages`, by the numbers of its tokens."""
    penalties: dict[str, Any] = field(default_factory=dict[str, Any])
    """`frequency_penalty`, `presence_penalty`, `logit_bias`, `top_k`, `min_p` and `repetition_penalty`, as vLLM's
    sampling parameters take them."""
    top_logprobs: int | None = None
    """See `WireOptions.top_logprobs`."""
    tools: tuple[dict[str, Any], ...] = ()
    """For the chat template, in OpenAI's form."""
    reads_calls: bool = False
    """`tools` may be called: calls are read out of the answer."""
    must_call: bool = False
    """At least one of `tools` is called, and nothing else is said."""
    parallel_calls: bool = True
    """Several may be called at once."""
    priority: int = 0
    """As vLLM counts: a lower number goes first."""
    prefix: str = ""
    """How the answer begins: what comes after it is wanted."""
    places: Places | None = None
    """The replicas where the call has gone, for whoever chooses one; empty once it has crossed."""


PRIORITIES: dict[Priority, int] = {"interactive": 0, "batch": 1}
STOP_NOTE = "stop was left out: it would cut the call that the model has to make."
UNREAD_GAP_S = 0.25
"""Interval between usage updates for unstreamed answers: rare enough to be cheap, frequent enough that an
aborted call's tokens are known."""


class ChunkCall(NamedTuple):
    """A call of a tool, whole: its name as it was offered, and its arguments as JSON text."""

    name: str
    arguments: str


class Chunk(NamedTuple):
    """What comes back, a piece at a time; counts are running totals."""

    text: str
    reasoning: str
    finish: str | None
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    calls: tuple[ChunkCall, ...] = ()
    """With the last piece only, whose `finish` is then `tool_calls`."""
    stop_sequence: str | None = None
    """Which one ended the answer."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of the tokens that begin in `text`, where they were asked for."""


class EngineClient(Protocol):
    """Carries a call to one of an engine's replicas."""

    def generate(
        self, call: EngineCall, waiting: Callable[[str], None] | None = None
    ) -> AsyncGenerator[Chunk]:
        """The chunks; closing the generator aborts the request in the engine.

        Args:
            call: what to answer.
            waiting: called with a reason while the first chunk is delayed, again and again.

        Raises:
            WorkerError: without a worker's name.
        """
        ...

    async def ready(self, adapters: Sequence[str] = ()) -> bool:
        """Whether a replica is up and its engine healthy, with all of `adapters`. Never raises for what it
        asks about.
        """
        ...

    async def load(self, adapter: str) -> None:
        """Fetch, load and try an adapter in every replica that is up; one that starts later does so by
        itself.

        Raises:
            AdapterError: a replica cannot serve it.
            WorkerUnavailable: a replica failed meanwhile.
        """
        ...


class VllmWorker:
    """One worker of an engine; several may share one, each with its own system prompt or adapter.

    Args:
        name: the worker's.
        model: for the record: the model, and the adapter over it.
        engine: who answers.
        price: of its tokens.
        adapter: where its adapter is.
        calls_tools: the engine reads calls of tools. Where not, none are offered, and those of others are words.
        patience: how long the engine may be silent.
    """

    def __init__(
        self,
        name: str,
        model: str,
        engine: EngineClient,
        price: Price | None = FREE,
        adapter: str | None = None,
        calls_tools: bool = False,
        patience: Patience = USUAL,
    ) -> None:
        self._origin, self._calls_tools, self._patience = Origin(name, model), calls_tools, patience
        self._name, self._model, self._engine, self.price, self._adapter = (
            name,
            model,
            engine,
            price,
            adapter,
        )

    @property
    def name(self) -> str:
        """See `Worker.name`."""
        return self._name

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """See `Worker.open`."""
        return open_reply(self._name, self._model, self._deltas(call), self.price)

    async def _deltas(self, call: Call) -> AsyncGenerator[Delta]:
        tools = self._tools(call)
        if call.sampling.stop and _must_call(tools):
            yield Delta(notes=(STOP_NOTE,))
        text, thoughts = list[str](), list[str]()
        timer, reasons = self._patience.with_engine(call), set[str]()
        finish: FinishReason | None = None

        def wait(why: str) -> None:
            timer.excuse()
            if (on_queued := call.terms.limits.on_queued) and why not in reasons:
                on_queued(why)
            reasons.add(why)

        try:
            async with aclosing(self._engine.generate(self._across(call), wait)) as chunks:
                while (chunk := await timer.next(chunks)) is not None:
                    timer.hear(is_last=chunk.finish is not None)
                    text.append(chunk.text)
                    thoughts.append(chunk.reasoning)
                    usage = Usage(
                        chunk.input_tokens, chunk.output_tokens, chunk.cached_tokens, chunk.reasoning_tokens
                    )
                    finish = FinishReason(chunk.finish) if chunk.finish else None
                    calls = tuple(tools.call("", each.name, each.arguments) for each in chunk.calls)
                    turn = Message("assistant", (Text("".join(text)), *calls)) if calls else None
                    native = self._native(turn, "".join(thoughts)) if turn else None
                    stop = chunk.stop_sequence
                    yield Delta(
                        chunk.text,
                        chunk.reasoning,
                        finish,
                        usage,
                        tool_calls=calls,
                        native=native,
                        stop_sequence=stop,
                        logprobs=chunk.logprobs,
                    )
        except WorkerError as exc:
            if finish:  # the answer is whole, and only its stream did not end
                return
            exc.worker = self._name  # the engine does not know for which of its workers it was asked
            exc.args = (f"{self._name}: {exc.message}",)
            raise

    def _tools(self, call: Call) -> WireTools:
        """The names of the tools that it may call; of those that were called, too."""
        called = any(message.tool_calls for message in call.messages)
        return WireTools(call.tools if self._calls_tools else NO_TOOLS, history=called)

    def _tokens(self, call: Call) -> tuple[int, ...]:
        if not call.sampling.options.token_prompt:
            return ()
        try:
            return tuple(read_tokens("".join(message.text for message in call.messages)))
        except ValueError as exc:
            raise WorkerRefused(TOKENS_GONE) from exc

    def _messages(self, call: Call) -> list[Message]:
        if not self._calls_tools:
            return with_tools_as_text(with_stable_system(call.messages))
        return self._origin.messages(call, keep_foreign=True)

    def _native(self, turn: Message, thoughts: str) -> Native | None:
        """The turn with the thoughts that led to its calls, for the chat template; None where there are none."""
        return self._origin.sign(_lines([turn])[0] | {"reasoning": thoughts}) if thoughts else None

    def _across(self, call: Call) -> EngineCall:
        tools = self._tools(call)
        if places := call.terms.limits.places:
            places.expect_choice()
        return EngineCall(
            _lines(self._messages(call)),
            call.sampling.max_output_tokens,
            call.sampling.temperature,
            call.sampling.top_p,
            () if _must_call(tools) else call.sampling.stop,
            call.sampling.seed,
            call.grammar.ebnf if call.grammar else None,
            call.answer_format,
            self._adapter,
            UNREAD_GAP_S if call.coalesce else 0.0,
            is_text=call.site.operation == "text_completion",
            tokens=self._tokens(call),
            penalties=_penalties(call.sampling),
            top_logprobs=call.sampling.options.top_logprobs,
            tools=tuple(cast(Any, tools_json(tools, takes_strict=False).get("tools", ()))),
            reads_calls=tools.is_offered,
            must_call=_must_call(tools),
            parallel_calls=tools.parallel,
            priority=PRIORITIES[call.terms.priority],
            prefix=call.prefix,
            places=places,
        )


def _must_call(tools: WireTools) -> bool:
    return tools.is_offered and tools.choice.mode == "required"


def _penalties(sampling: Sampling) -> dict[str, Any]:
    """Those that are asked for."""
    options = sampling.options
    given = {
        "frequency_penalty": options.frequency_penalty,
        "presence_penalty": options.presence_penalty,
        "logit_bias": {int(each.token): each.bias for each in options.logit_bias or ()} or None,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
    }
    return {name: value for name, value in given.items() if value is not None}


def _lines(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """The conversation in OpenAI's form. A turn of calls alone has empty words: chat templates lay words out."""
    lines: list[dict[str, Any]] = messages_json(messages, _content)
    return [_with_thoughts(line | {"content": line["content"] or ""}) for line in lines]


def _with_thoughts(line: dict[str, Any]) -> dict[str, Any]:
    """Thoughts that a client sent back, under the name that chat templates are given them by."""
    thoughts = line.pop("reasoning_content", None)
    return line if thoughts is None else {"reasoning": thoughts, **line}


def _content(message: Message) -> str | list[dict[str, Any]]:
    if not message.has_image:
        return message.text
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case Text(text=text):
                parts.append({"type": "text", "text": text})
            case Image(url=url):
                parts.append({"type": "image_url", "image_url": {"url": url}})
            case _:  # calls and results are lines of their own; an engine is shown no PDF
                pass
    return parts
