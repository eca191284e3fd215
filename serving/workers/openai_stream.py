"""Usage, cost and log probabilities in chunks of OpenAI-compatible servers.

Log probabilities do not affect the bill, so invalid ones are ignored.
"""

from itertools import zip_longest
from math import isfinite
from typing import Any, cast

from msgspec.structs import replace

from conductor.model.call import Call
from conductor.model.characters import whole
from conductor.model.messages import ToolCall
from conductor.model.operation import Likely, TokenLogprob
from conductor.model.reply import Delta, FinishReason
from conductor.model.usage import Usage
from serving.workers.answer_stream import AnswerReader, Provider, finish_of
from serving.workers.chat_chunks import (
    ChatChunk,
    ChunkChoice,
    ChunkReader,
    concatenate,
    fields,
    groups_of,
    plain_words,
    words_of,
)
from serving.workers.chat_tools import CallCollector
from serving.workers.output_limit import OutputMeter
from serving.workers.usage import UsageCheck, has_grown, integer
from serving.workers.wire_tools import WireTools


def cost_of(chunk: ChatChunk) -> object:
    """Return OpenRouter's `usage.cost` or another Podium's `podium.cost_usd` so far, or None. With the
    account's own key (`is_byok`), OpenRouter's is only its fee.
    """
    usage = fields(chunk.usage)
    if usage.get("is_byok"):
        return None
    cost = usage.get("cost")
    return fields(chunk.podium).get("cost_usd") if cost is None else cost


def usage_of(reported: object, check: UsageCheck) -> Usage | None:
    if reported is None:
        return None
    usage = fields(reported)
    of_prompt, of_answer = (
        fields(usage.get("prompt_tokens_details")),
        fields(usage.get("completion_tokens_details")),
    )
    n_input = check.count("prompt_tokens", usage.get("prompt_tokens"))
    n_output = check.count("completion_tokens", usage.get("completion_tokens"))
    n_reasoning = check.count("reasoning_tokens", of_answer.get("reasoning_tokens"))
    if (
        n_input
        and n_reasoning
        and integer(usage.get("total_tokens")) == n_input + (n_output or 0) + n_reasoning
    ):
        n_output = (n_output or 0) + n_reasoning  # xAI's completion_tokens do not include thoughts
    return check.usage(
        n_input,
        n_output,
        check.count("cached_tokens", of_prompt.get("cached_tokens")),
        n_reasoning,
        *cache_writes_in(of_prompt, check),
    )


def cache_writes_in(of_prompt: dict[str, object], check: UsageCheck) -> tuple[int, int]:
    """Return the tokens written to a cache, and how many of them for an hour, in the details of a prompt.

    OpenAI and OpenRouter report `cache_write_tokens`. LiteLLM reports the lifetimes too, and in earlier versions
    `cache_creation_tokens` instead.
    """
    name = "cache_write_tokens" if "cache_write_tokens" in of_prompt else "cache_creation_tokens"
    split = fields(of_prompt.get("cache_creation_token_details"))
    names = "ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"
    short, hour = (check.count(each, split.get(each)) for each in names)
    return check.cache_writes(check.count(name, of_prompt.get(name)), short, hour)


def logprobs_of(chunk: ChatChunk) -> tuple[TokenLogprob, ...]:
    """Return the log probabilities of the chunk's tokens, in the format of chats or text completions."""
    logprobs = fields(chunk.choice.logprobs if chunk.choice else None)
    if isinstance(content := logprobs.get("content"), list):
        return tuple(each for each in map(_token, cast(list[Any], content)) if each is not None)
    tokens, values, top = (_list(logprobs.get(name)) for name in ("tokens", "token_logprobs", "top_logprobs"))
    rows = zip_longest(tokens, values[: len(tokens)], top[: len(tokens)])
    return tuple(
        TokenLogprob(whole(str(token)), _number(value), _likely(fields(more).items()))
        for token, value, more in rows
    )


def _token(value: Any) -> TokenLogprob | None:
    each = fields(value)
    if not isinstance(token := each.get("token"), str):
        return None
    others = (fields(other) for other in _list(each.get("top_logprobs")))
    top = _likely((other.get("token"), other.get("logprob")) for other in others)
    return TokenLogprob(whole(token), _number(each.get("logprob")), top)


def _likely(pairs: Any) -> tuple[Likely, ...]:
    return tuple(Likely(whole(token), _number(value)) for token, value in pairs if isinstance(token, str))


def _list(value: object) -> list[object]:
    return cast(list[object], value) if isinstance(value, list) else []


def _number(value: object) -> float:
    """Return `value` as a number, or -9999, which OpenAI sends for tokens that are too unlikely."""
    return float(value) if isinstance(value, int | float) and isfinite(value) else -9999.0


class OpenAIAnswer(AnswerReader[list[ChatChunk]]):
    """Reader of an answer of the Chat Completions API. An event is the list of chunks that one read
    completed.
    """

    def __init__(self, call: Call, meter: OutputMeter, provider: Provider) -> None:
        super().__init__(call, meter, provider)
        self.chunks, self._calls, self._texts = ChunkReader(), CallCollector(meter), list[str]()
        self._wants_logprobs = call.sampling.options.top_logprobs is not None

    def read(self, event: list[ChatChunk]) -> tuple[list[Delta], bool]:
        is_new, words = False, list[tuple[str, str]]()
        for chunk in event:
            piece, has_more = self._fold(chunk)
            is_new |= has_more
            if piece[0] or piece[1]:
                words.append(piece)
        self._texts += [text for text, _ in words if text]
        self.has_words, self.is_done = bool(self._texts), self.chunks.is_done
        pieces = self._pieces(words, event) if words else []
        is_whole = self.is_done and not (self.chunks.error or self.chunks.fault)
        if self.last.finish is None and is_whole and (self.has_words or self.has_calls):
            self.last = replace(self.last, finish=FinishReason.STOP)  # some servers send `[DONE]` alone
        return pieces, is_new or bool(words)

    def _pieces(self, words: list[tuple[str, str]], chunks: list[ChatChunk]) -> list[Delta]:
        """Return the texts of one read, which have the log probabilities in `chunks`, in as few pieces as possible."""
        likely = (
            tuple(each for chunk in chunks for each in logprobs_of(chunk)) if self._wants_logprobs else ()
        )
        wants_one = self._call.coalesce or self._wants_logprobs
        groups = [words] if wants_one else groups_of(words, self._meter.pieces_left)
        usage = None if self.last.finish else self.last.usage  # the last delta has the final usage
        model = self.last.model
        return [
            Delta(*concatenate(each), usage=usage, model=model, pieces=len(each), logprobs=likely)
            for each in groups
        ]

    def turn(self, tools: WireTools) -> tuple[tuple[ToolCall, ...], object]:
        calls = self._calls.calls(tools)
        return calls, self._calls.turn("".join(self._texts))

    def _fold(self, chunk: ChatChunk) -> tuple[tuple[str, str], bool]:
        """Add a chunk to the last delta. Return the answer text and reasoning text of the chunk, and whether it has
        other new content.
        """
        plain = plain_words(chunk, self.last.model)
        if plain is not None:
            return (plain, ""), False
        choice = chunk.choice
        last = self._updated(chunk, choice)
        is_new = has_grown(self.last.usage, last.usage) | self._calls.add(choice.delta if choice else None)
        self.last, self.has_calls = last, bool(self._calls)
        return words_of(choice), is_new

    def _updated(self, chunk: ChatChunk, choice: ChunkChoice | None) -> Delta:
        """Return the last delta of the answer, updated from this chunk."""
        last, check = self.last, self._check
        refused = last.finish is FinishReason.CONTENT_FILTER  # servers finish a refusal with "stop"
        usage = usage_of(chunk.usage, check) or last.usage
        cost_usd = check.cost_usd(cost_of(chunk))
        stop = choice.stop_reason if choice else None
        return Delta(
            finish=last.finish if refused else self._finish(choice, usage) or last.finish,
            usage=usage,
            cost_usd=last.cost_usd if cost_usd is None else cost_usd,
            cost_is_bound=last.cost_is_bound or fields(chunk.podium).get("cost_is_bound") is True,
            model=chunk.model if isinstance(chunk.model, str) and chunk.model else last.model,
            stop_sequence=stop if isinstance(stop, str) else last.stop_sequence,
        )

    def _finish(self, choice: ChunkChoice | None, usage: Usage | None) -> FinishReason | None:
        """Return the chunk's finish reason, or None. A refusal counts as a filtered answer."""
        if choice is None:
            return None
        if choice.delta and choice.delta.refusal:
            return FinishReason.CONTENT_FILTER
        return finish_of(choice.finish_reason, self._faults, usage)
