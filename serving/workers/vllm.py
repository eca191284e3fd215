"""Worker for models in vLLM engines, and the messages that a router and the replicas of an engine exchange.

This module imports neither Ray nor vLLM. `serving/deployments/engine.py` answers the calls in a replica, and
`serving/deployments/handle.py` sends them there.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

from conductor.errors import WorkerError, WorkerRefused
from conductor.model.call import AnswerFormat, Call, Sampling
from conductor.model.deltas import open_reply
from conductor.model.messages import NO_TOOLS, Image, Message, Native, Text
from conductor.model.operation import TOKENS_GONE, TokenLogprob, read_tokens
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.terms import Places, Priority
from conductor.model.usage import FREE, Price, Usage
from conductor.plan.prompt_parts import with_stable_system
from conductor.plan.prompts import with_tools_as_text
from serving.workers.cache_marks import conversation_in_cache
from serving.workers.chat_tools import messages_json, tools_json
from serving.workers.native_turns import Origin
from serving.workers.stall_timer import USUAL, Patience
from serving.workers.whole_sentences import is_prose, whole_sentences
from serving.workers.wire_tools import WireTools


@dataclass(frozen=True, slots=True)
class EngineCall:
    """Request to a replica: a conversation in OpenAI's format, and sampling parameters.

    Ray Serve's prefix-affinity router finds the prompt by the name `messages`.
    """

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    ebnf: str | None = None
    answer_format: AnswerFormat | None = None
    """Format of a JSON answer. Cannot be combined with `ebnf`."""
    adapter: str | None = None
    """Address of a LoRA adapter. Its name is never reused: see `serving.lora.adapters`."""
    gap_s: float = 0.0
    """Minimum seconds between two chunks. The first and the last chunk are sent immediately."""
    is_text: bool = False
    """True if the text of `messages` is the prompt, without a chat template."""
    tokens: tuple[int, ...] = ()
    """Token numbers of the prompt, instead of `messages`."""
    penalties: dict[str, Any] = field(default_factory=dict[str, Any])
    """`frequency_penalty`, `presence_penalty`, `logit_bias`, `top_k`, `min_p` and `repetition_penalty`, as in vLLM's
    sampling parameters."""
    top_logprobs: int | None = None
    """See `WireOptions.top_logprobs`."""
    tools: tuple[dict[str, Any], ...] = ()
    """Tools for the chat template, in OpenAI's format."""
    reads_calls: bool = False
    """True if the model may call `tools`. If so, calls are parsed from the answer."""
    must_call: bool = False
    """True if the answer must consist of at least one call."""
    parallel_calls: bool = True
    """True if the answer may have several calls."""
    priority: int = 0
    """vLLM's priority: lower numbers go first."""
    prefix: str = ""
    """Beginning of the answer. The engine returns only what follows it."""
    places: Places | None = None
    """Replicas to which the call was sent, for the choice of the next one. Empty in the replica itself."""
    conversation: str = ""
    """Id of the conversation, for the choice of the replica. See `PromptCache.conversation`."""
    cache_salt: str = ""
    """Only calls with the same text here share cached prompts. See `_cache_salt`."""


PRIORITIES: dict[Priority, int] = {"interactive": 0, "batch": 1}
STOP_NOTE = "stop was ignored, because it could cut off the required tool call."
UNREAD_GAP_S = 0.25
"""Seconds between usage updates without a stream, so that an aborted call's tokens are known."""


class ChunkCall(NamedTuple):
    name: str
    """Name of the tool as it was offered."""
    arguments: str
    """Arguments as JSON text."""


class Chunk(NamedTuple):
    """Piece of an answer that a replica sends. Token counts are running totals."""

    text: str
    reasoning: str
    finish: str | None
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    calls: tuple[ChunkCall, ...] = ()
    """Tool calls. Only the last chunk can have calls. Its `finish` is then `tool_calls`."""
    stop_sequence: str | None = None
    """Stop sequence that ended the answer, if any."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Log probabilities of the tokens that begin in `text`, if requested."""


class EngineClient(Protocol):
    def generate(
        self, call: EngineCall, waiting: Callable[[str], None] | None = None
    ) -> AsyncGenerator[Chunk]:
        """Yield the chunks of a replica. Closing the generator aborts the request.

        `waiting` is called with the reason while the first chunk is delayed. A WorkerError does not name the
        worker.
        """
        ...

    async def ready(self, adapters: Sequence[str] = ()) -> bool:
        """Return whether a healthy replica can serve `adapters`. One that raises an error is not ready."""
        ...

    async def load(self, adapter: str) -> None:
        """Fetch, load and test an adapter in every replica. Later ones load it on their own. Raise
        AdapterError, or WorkerUnavailable if a replica failed.
        """
        ...


class VllmWorker:
    """Worker whose model runs in a vLLM engine, which several workers may share.

    Args:
        model: name of the model and its adapter, for the record.
        calls_tools: whether the engine parses tool calls. If not, no tools are offered, and earlier tool
            calls in the conversation become text.
        whole_sentences: whether an answer that reaches its limit ends with a whole sentence.
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
        whole_sentences: bool = False,
    ) -> None:
        self._origin, self._calls_tools, self._patience = Origin(name, model), calls_tools, patience
        self._whole_sentences = whole_sentences
        self._name, self._model, self._engine = name, model, engine
        self.price, self._adapter = price, adapter

    @property
    def name(self) -> str:
        return self._name

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        deltas, most = self._deltas(call), call.sampling.max_output_tokens
        if self._whole_sentences and most and is_prose(call):
            deltas = whole_sentences(deltas, most)
        return open_reply(self._name, self._model, deltas, self.price)

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
            async with aclosing(self._engine.generate(self._engine_call(call), wait)) as chunks:
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
            if finish:  # the answer is complete; only its stream did not end
                return
            exc.worker = self._name  # the engine does not know which of its workers was called
            exc.args = (f"{self._name} could not answer: {exc.message}",)
            raise

    def _tools(self, call: Call) -> WireTools:
        """Return the tools of `call`, also if none may be called but the conversation has tool calls."""
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
        """Return the turn with the thoughts that led to its calls, which the chat template needs, or None."""
        return self._origin.sign(_lines([turn])[0] | {"reasoning": thoughts}) if thoughts else None

    def _engine_call(self, call: Call) -> EngineCall:
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
            conversation=conversation_in_cache(call),
            cache_salt=_cache_salt(call),
        )


def _cache_salt(call: Call) -> str:
    """Return the tenant of a call, so that `cached_tokens` does not tell it what other tenants have sent.

    Plans share a cache, because their prompts begin with the same long text, which each tenant would compute again.
    """
    return "" if call.site.operation == "plan" else call.terms.tenant


def _must_call(tools: WireTools) -> bool:
    return tools.is_offered and tools.choice.mode == "required"


def _penalties(sampling: Sampling) -> dict[str, Any]:
    """Return the sampling parameters that are set, by vLLM's names."""
    options = sampling.options
    parameters = {
        "frequency_penalty": options.frequency_penalty,
        "presence_penalty": options.presence_penalty,
        "logit_bias": {int(each.token): each.bias for each in options.logit_bias or ()} or None,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
    }
    return {name: value for name, value in parameters.items() if value is not None}


def _lines(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return the conversation in OpenAI's format. Templates require an empty text with tool calls."""
    lines: list[dict[str, Any]] = messages_json(messages, _content)
    return [_with_thoughts(line | {"content": line["content"] or ""}) for line in lines]


def _with_thoughts(line: dict[str, Any]) -> dict[str, Any]:
    """Rename the field with the thoughts that a client sent back to the name that chat templates use."""
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
            case _:  # calls and results are separate lines, and engines get no PDFs
                pass
    return parts
