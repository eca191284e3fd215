"""Calls of tools in what a vLLM engine's model writes: vLLM's own parser for the model reads them.

A model that has to call is held to JSON by the schemas of the tools, and that is read as it stands. Knows vLLM's
parsers; does not know the engine, nor whose tools they are.
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
    """Reads one answer. Text outside the calls goes on as it comes, calls are read whole at the end.

    Args:
        parser: vLLM's name of the model's parser (`--tool-call-parser`).
        tokenizer: the model's.
        call: with tools.

    Raises:
        KeyError: vLLM has no such parser.
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
        self._text, self._ids, self._given = "", list[int](), ""

    def constrain(self, sampling: SamplingParams) -> None:
        """Changes `sampling` so that the calls can be read; and so that there is one, where one must be."""
        sampling.skip_special_tokens = self._request.skip_special_tokens
        if not self._call.must_call:
            return
        tools = copy.deepcopy(cast(list[Any], self._request.tools))
        for tool, held in zip(
            tools, hold_calls_to([each.function.parameters for each in tools]), strict=True
        ):
            tool.function.parameters = dict(held)  # vLLM takes the `$defs` out of it
        schema = cast(dict[str, Any], get_json_schema_from_tools("required", tools))
        if not self._call.parallel_calls:
            schema = schema | {"maxItems": 1}
        sampling.skip_special_tokens = True
        sampling.structured_outputs = StructuredOutputsParams(json=schema)

    def feed(self, text: str, completion: CompletionOutput) -> str:
        """The text outside the calls that has come with this piece.

        Args:
            text: of the piece, without thoughts.
            completion: the piece.
        """
        before, before_ids = self._text, self._ids
        self._text, self._ids = before + text, [*before_ids, *completion.token_ids]
        if self._call.must_call:
            return ""
        message = self._streaming.extract_tool_calls_streaming(
            before, self._text, text, before_ids, self._ids, list(completion.token_ids), self._request
        )
        said = (message.content or "") if message else ""
        self._given += said
        return said

    def end(self) -> tuple[str, tuple[ChunkCall, ...]]:
        """Text that was held back and is no call after all; and the calls."""
        calls = self._read_forced_calls() if self._call.must_call else self._parse_calls()
        if calls:
            return "", calls if self._call.parallel_calls else calls[:1]
        return (self._text[len(self._given) :] if self._text.startswith(self._given) else ""), ()

    def _parse_calls(self) -> tuple[ChunkCall, ...]:
        found = self._whole.extract_tool_calls(self._text, self._request)
        return tuple(ChunkCall(each.function.name, each.function.arguments) for each in found.tool_calls)

    def _read_forced_calls(self) -> tuple[ChunkCall, ...]:
        try:
            found = cast(list[dict[str, Any]], json.loads(self._text))
        except ValueError:
            return ()
        return tuple(ChunkCall(each["name"], json.dumps(each["parameters"])) for each in found)


def chat_arguments(call: EngineCall, arguments: dict[str, Any]) -> dict[str, Any]:
    """The chat template's `arguments`, with the tools that it lays out."""
    return arguments | ({"tools": list(call.tools)} if call.tools else {})
