"""Read tool calls from the output of a vLLM engine, with vLLM's own parser for the model.

If the model must call a tool, its output is constrained to JSON that matches the schemas of the tools, and
that JSON is read directly. This module depends on vLLM's parsers, but not on the engine.
"""

import copy
import json
from typing import Any, cast

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.outputs import CompletionOutput
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.tokenizers import TokenizerLike
from vllm.tool_parsers import ToolParser, ToolParserManager
from vllm.tool_parsers.utils import get_json_schema_from_tools  # pyright: ignore[reportUnknownVariableType]

from serving.schemas.vllm import hold_calls_to
from serving.workers.vllm import ChunkCall, EngineCall


class ToolReader:
    """Reader of one answer's tool calls, by vLLM's `parser`. Text outside the calls is streamed. The calls
    are read at the end.
    """

    def __init__(self, parser: str, tokenizer: TokenizerLike, call: EngineCall) -> None:
        self._call = call
        self._request = ChatCompletionRequest.model_validate(
            {"messages": [{"role": "user", "content": ""}], "tools": list(call.tools), "tool_choice": "auto"}
        )
        make = ToolParserManager.get_tool_parser(parser)
        tools = cast(Any, self._request.tools)
        self._streaming: ToolParser = make(tokenizer, tools)
        self._whole: ToolParser = make(tokenizer, tools)
        self._request = cast(ChatCompletionRequest, self._streaming.adjust_request(self._request))
        self._text, self._ids, self._streamed = "", list[int](), ""

    def constrain(self, sampling: SamplingParams) -> None:
        """Change `sampling` so that tool calls can be read, and are written if one is required."""
        sampling.skip_special_tokens = self._request.skip_special_tokens
        if not self._call.must_call:
            return
        tools = copy.deepcopy(cast(list[Any], self._request.tools))
        for tool, parameters in zip(
            tools, hold_calls_to([each.function.parameters for each in tools]), strict=True
        ):
            tool.function.parameters = dict(parameters)  # a copy, because vLLM removes `$defs` from it
        schema = cast(dict[str, Any], get_json_schema_from_tools("required", tools))
        if not self._call.parallel_calls:
            schema = schema | {"maxItems": 1}
        sampling.skip_special_tokens = True
        sampling.structured_outputs = StructuredOutputsParams(json=schema)

    def feed(self, text: str, completion: CompletionOutput) -> str:
        """Return the new text outside the tool calls in `text`, the chunk's without reasoning."""
        before, before_ids = self._text, self._ids
        self._text, self._ids = before + text, [*before_ids, *completion.token_ids]
        if self._call.must_call:
            return ""
        message = self._streaming.extract_tool_calls_streaming(
            before, self._text, text, before_ids, self._ids, list(completion.token_ids), self._request
        )
        content = (message.content or "") if message else ""
        self._streamed += content
        return content

    def end(self) -> tuple[str, tuple[ChunkCall, ...]]:
        """Return text that was withheld because it could have been a tool call, and the tool calls."""
        calls = self._read_forced_calls() if self._call.must_call else self._parse_calls()
        if calls:
            return "", calls if self._call.parallel_calls else calls[:1]
        withheld = self._text[len(self._streamed) :] if self._text.startswith(self._streamed) else ""
        return withheld, ()

    def _parse_calls(self) -> tuple[ChunkCall, ...]:
        result = self._whole.extract_tool_calls(self._text, self._request)
        return tuple(ChunkCall(each.function.name, each.function.arguments) for each in result.tool_calls)

    def _read_forced_calls(self) -> tuple[ChunkCall, ...]:
        try:
            calls = cast(list[dict[str, Any]], json.loads(self._text))
        except ValueError:
            return ()
        return tuple(ChunkCall(each["name"], json.dumps(each["parameters"])) for each in calls)


def chat_arguments(call: EngineCall, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the chat template's `arguments`, with the call's tools if it has any."""
    return arguments | ({"tools": list(call.tools)} if call.tools else {})
