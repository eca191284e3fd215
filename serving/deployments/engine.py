"""A vLLM engine in a Ray Serve replica.

The replica's process runs vLLM's `AsyncLLM` directly, with vLLM's own chat rendering and reasoning parsers
(docs/decisions/0001). A request is aborted when its generator is closed. This module depends on vLLM, but not
on plans, pools or HTTP.
"""

import asyncio
import copy
import os
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.inputs import EngineInput
from vllm.outputs import RequestOutput
from vllm.reasoning import ReasoningParser, ReasoningParserManager
from vllm.renderers.params import ChatParams
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from vllm.tool_parsers import ToolParserManager
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger

from conductor.errors import ContextOverflow, WorkerError, WorkerRefused, WorkerUnavailable
from serving.deployments import cpu_start
from serving.deployments.adapters import Adapters
from serving.deployments.autoscaling import LOAD
from serving.deployments.coalescing import coalesce
from serving.deployments.engine_load import EngineLoad
from serving.deployments.loopback import listen_on_loopback
from serving.deployments.media import inline_pictures
from serving.deployments.token_logprobs import LogprobReader
from serving.deployments.tool_parsing import ToolReader, chat_arguments
from serving.lora.adapters import AdapterError
from serving.telemetry.spans import find_endpoint, outgoing_headers
from serving.workers.vllm import Chunk, ChunkCall, EngineCall

MOST_CHARS_A_TOKEN = 128
"""Maximum characters of a token. In current vocabularies, the longest are spaces."""
LONGEST_GAP_S = 0.25
"""Maximum seconds between two messages of a streamed answer, however many answers are streamed."""
Split = Callable[[RequestOutput], tuple[str, str]]


class Engine:
    """vLLM engine of one replica.

    Args:
        engine: vLLM's engine arguments. Also `chat_template_kwargs`, e.g. `{enable_thinking: false}`, and
            `tool_call_parser`, vLLM's name of the parser for the model's tool calls.
    """

    def __init__(self, model: str, engine: dict[str, Any], messages_per_s: float = 400) -> None:
        listen_on_loopback()
        self._messages_per_s = messages_per_s
        endpoint = find_endpoint(os.environ)
        arguments: Any = {
            "model": model,
            "otlp_traces_endpoint": endpoint,
            "scheduling_policy": "priority",
            **engine,
        }
        self._by_priority: bool = arguments["scheduling_policy"] == "priority"
        cpu_start.prepare(arguments)
        template_kwargs = arguments.pop("chat_template_kwargs", {})
        self._tool_parser: str = arguments.pop("tool_call_parser", "")
        if self._tool_parser:
            # Reject an unknown parser before the model is loaded.
            ToolParserManager.get_tool_parser(self._tool_parser)
        self._chat = ChatParams(chat_template_kwargs={"add_generation_prompt": True, **template_kwargs})
        self._load = EngineLoad()
        loggers: list[Any] = [self._load.for_engine, RayPrometheusStatLogger]
        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=loggers)
        config = self._engine.vllm_config
        self._max_model_len: int = config.model_config.max_model_len
        self._media_hosts: list[str] = config.model_config.allowed_media_domains or []
        self._reasoning_parser: str = config.structured_outputs_config.reasoning_parser
        self._adapters = Adapters(self._engine)
        self._warm: dict[str | None, asyncio.Task[None]] = {}

    async def check_health(self) -> None:
        """Raise if the engine is dead, so that Ray Serve restarts the replica."""
        await self._engine.check_health()

    async def ready(self, adapters: Sequence[str] = ()) -> bool:
        """Return whether the engine is healthy and has answered a warm-up call for its model and each
        adapter.
        """
        try:
            for adapter in (None, *adapters):
                await self._warm_up(adapter)
        except AdapterError:
            return False  # already logged
        return not self._engine.errored

    async def load(self, adapter: str) -> AdapterError | None:
        """Fetch and load an adapter, and warm it up. Return the error that left the engine unchanged, if any."""
        try:
            await self._adapters.load(adapter)
            await self._warm_up(adapter)
        except AdapterError as exc:
            return exc
        return None

    async def _warm_up(self, adapter: str | None) -> None:
        task = self._warm.get(adapter)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._warm[adapter] = asyncio.create_task(self._answer_once(adapter))
        await asyncio.shield(task)  # a cancelled caller must not cancel the warm-up

    async def _answer_once(self, adapter: str | None) -> None:
        call = EngineCall(
            [{"role": "user", "content": "Hello"}], max_tokens=2, ebnf='root ::= "a" "b"', adapter=adapter
        )
        async for _ in self._answer(call):
            pass

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Report the load for `autoscaling.by_load`: 0 without requests, when statistics may be out of date."""
        return {LOAD: self._load.load if self._engine.get_num_unfinished_requests() else 0.0}

    async def n_unfinished(self) -> int:
        """Return the number of requests that wait or run in the engine."""
        return self._engine.get_num_unfinished_requests()

    async def generate(self, call: EngineCall) -> AsyncGenerator[Chunk | WorkerError]:
        """Answer `call`. If the generator is closed or cancelled, the engine aborts the request.

        A rejection of the call is yielded last, because Ray Serve would log a raised error as a failure of
        the replica.
        """
        try:
            async with aclosing(coalesce(self._answer(call), lambda: self._gap_s(call))) as messages:
                async for message in messages:
                    yield message
        except (ContextOverflow, WorkerRefused) as exc:
            yield exc
        except AdapterError as exc:
            yield WorkerRefused("The adapter cannot be served.", detail=exc.message, every_call=True)
        except (VLLMClientError, ValueError) as exc:
            yield self._engine_error(exc)
        except (EngineDeadError, EngineGenerateError) as exc:
            raise WorkerUnavailable("The engine failed. Try again.", detail=str(exc)) from exc

    def _gap_s(self, call: EngineCall) -> float:
        """Return the minimum seconds between two messages. All answers together get `messages_per_s`."""
        fair_s = self._engine.get_num_unfinished_requests() / self._messages_per_s
        return max(call.gap_s, min(fair_s, LONGEST_GAP_S))

    async def _answer(self, call: EngineCall) -> AsyncGenerator[Chunk]:
        prompt = with_salt(await self._render(call), call.cache_salt)
        n_prompt = len(cast(Any, prompt)["prompt_token_ids"])
        room = self._max_model_len - n_prompt
        if room < 1:
            raise ContextOverflow(
                f"The prompt has {n_prompt} tokens, but the model's limit is {self._max_model_len}. Shorten the prompt."
            )
        adapter = await self._adapters.lora_request(call.adapter) if call.adapter else None
        defaults = self._engine.model_config.get_diff_sampling_param()
        sampling, tools = sampling_params(call, room, defaults), self._tool_reader(call)
        if tools:
            await asyncio.to_thread(tools.constrain, sampling)
        outputs = self._engine.generate(
            prompt,
            sampling,
            uuid.uuid4().hex,
            lora_request=adapter,
            trace_headers=outgoing_headers() or None,
            priority=call.priority if self._by_priority else 0,
        )
        split, likely = self._splitter(call), self._logprob_reader(call)
        n_output, n_reasoning = 0, 0
        async with aclosing(outputs):
            async for output in outputs:
                completion = output.outputs[0]
                n_output += len(completion.token_ids)
                text, reasoning = split(output)
                n_reasoning += len(completion.token_ids) if reasoning else 0
                finish = _finish(completion.finish_reason)
                calls: tuple[ChunkCall, ...] = ()
                if tools and not reasoning:
                    text = tools.feed(text, completion)
                if tools and finish == "stop":  # a truncated tool call is not a call
                    rest, calls = tools.end()
                    text, finish = text + rest, "tool_calls" if calls else finish
                n_cached = output.num_cached_tokens or 0
                stop = completion.stop_reason if isinstance(completion.stop_reason, str) else None
                logprobs = likely.feed(completion, text) if likely else ()
                yield Chunk(
                    text, reasoning, finish, n_prompt, n_cached, n_output, n_reasoning, calls, stop, logprobs
                )

    async def _render(self, call: EngineCall) -> EngineInput:
        call = await inline_pictures(call, self._media_hosts)
        chars = sum(len(part) for message in call.messages for part in _texts(message["content"]))
        chars += sum(len(str(message.get("tool_calls", ""))) for message in call.messages) + len(
            str(call.tools)
        )
        # Tokenizing megabytes of text takes gigabytes of memory.
        if chars > self._max_model_len * MOST_CHARS_A_TOKEN:
            raise ContextOverflow(
                f"The prompt has {chars} characters, but the model's limit is {self._max_model_len} tokens. Shorten the prompt."
            )
        if call.tokens:
            prompt: Any = {"prompt_token_ids": list(call.tokens)}
            return (await self._engine.renderer.render_cmpl_async([prompt]))[0]
        if call.is_text:
            text = "".join(part for message in call.messages for part in _texts(message["content"]))
            return (await self._engine.renderer.render_cmpl_async([{"prompt": text}]))[0]
        chat = replace(self._chat, chat_template_kwargs=chat_arguments(call, self._chat.chat_template_kwargs))
        messages = copy.deepcopy(call.messages)  # vLLM replaces the calls' arguments by their parsed form
        _, prompts = await self._engine.renderer.render_chat_async([cast(Any, messages)], chat)
        return self._with_prefix(prompts[0], call.prefix)

    def _with_prefix(self, prompt: EngineInput, prefix: str) -> EngineInput:
        """Append the tokens of `prefix`, whose last spaces a chat template would remove."""
        if prefix:
            tokens = self._engine.get_tokenizer().encode(prefix, add_special_tokens=False)
            cast(Any, prompt)["prompt_token_ids"] = [*cast(Any, prompt)["prompt_token_ids"], *tokens]
        return prompt

    def _engine_error(self, error: Exception) -> WorkerError:
        text = str(error)
        if "maximum context length" in text or "max_model_len" in text or "longer than the maximum" in text:
            return ContextOverflow(
                f"The prompt is longer than the model's limit of {self._max_model_len} tokens. Shorten the prompt."
            )
        why = "The engine rejected the request."
        if "out of vocabulary" in text:
            why = "The prompt contains a token id that is not in the model's vocabulary."
        return WorkerRefused(why, detail=f"vLLM: {text}")

    def _tool_reader(self, call: EngineCall) -> ToolReader | None:
        if not self._tool_parser or not call.reads_calls:
            return None
        return ToolReader(self._tool_parser, self._engine.get_tokenizer(), call)

    def _logprob_reader(self, call: EngineCall) -> LogprobReader | None:
        if call.top_logprobs is None:
            return None
        parser = self._thought_parser(call)
        return LogprobReader(call.top_logprobs, parser.extract_content_ids if parser else None)

    def _thought_parser(self, call: EngineCall) -> ReasoningParser | None:
        """Return a reasoning parser for one answer, or None if the output has no reasoning, as in plans."""
        if not self._reasoning_parser or call.ebnf or call.is_text:
            return None
        make = ReasoningParserManager.get_reasoning_parser(self._reasoning_parser)
        return make(self._engine.get_tokenizer())

    def _splitter(self, call: EngineCall) -> Split:
        """Return a function that splits each output into answer and reasoning."""
        parser = self._thought_parser(call)
        if parser is None:
            return lambda output: (output.outputs[0].text, "")
        text, ids = "", list[int]()

        def split(output: RequestOutput) -> tuple[str, str]:
            nonlocal text, ids
            completion = output.outputs[0]
            before, before_ids = text, ids
            text, ids = text + completion.text, [*ids, *completion.token_ids]
            message = parser.extract_reasoning_streaming(
                before, text, completion.text, before_ids, ids, list(completion.token_ids)
            )
            return (message.content or "", message.reasoning or "") if message else ("", "")

        return split


def with_salt(prompt: EngineInput, salt: str) -> EngineInput:
    """Return a prompt that shares the prefix cache only with prompts of the same salt. "" shares with all that have none."""
    return cast(EngineInput, {**cast(Any, prompt), "cache_salt": salt}) if salt else prompt


def sampling_params(call: EngineCall, room: int, defaults: dict[str, Any]) -> SamplingParams:
    """Return vLLM's parameters for a call whose answer has room for `room` tokens. Parameters that the call does not set have the
    model's defaults, from its `generation_config.json` or from `override_generation_config` in the settings. JSON and plans
    have no default penalty, because they repeat themselves.
    """
    if _constraint(call) or call.reads_calls:
        defaults = {name: value for name, value in defaults.items() if name != "repetition_penalty"}
    parameters = {"temperature": call.temperature, "top_p": call.top_p, "seed": call.seed, **call.penalties}
    chosen = {name: value for name, value in parameters.items() if value is not None}
    sampling: dict[str, Any] = {**defaults, **chosen, "max_tokens": min(call.max_tokens or room, room)}
    return SamplingParams(
        **sampling,
        stop=list(call.stop),
        logprobs=call.top_logprobs,
        structured_outputs=_constraint(call),
        output_kind=RequestOutputKind.DELTA,
    )


def _constraint(call: EngineCall) -> StructuredOutputsParams | None:
    answer_format = call.answer_format
    if call.ebnf:
        return StructuredOutputsParams(grammar=call.ebnf)
    if answer_format is None:
        return None
    if answer_format.schema is None:
        return StructuredOutputsParams(json_object=True)
    return StructuredOutputsParams(json=dict(answer_format.schema))


def _texts(content: str | list[dict[str, Any]]) -> list[str]:
    return [content] if isinstance(content, str) else [part.get("text", "") for part in content]


def _finish(reason: str | None) -> str | None:
    """Return the finish reason, or None for `abort`, so that the reader treats the stream as truncated."""
    return reason if reason in ("stop", "length") else None
