"""Calls of tools in what a vLLM engine writes, read by vLLM's own parser for the model.

The parser also says how to decode: whether special tokens stay in the text, and what an answer that has to call is held
to. Knows vLLM's parsers; asks no engine.
"""

import json
from dataclasses import dataclass
from typing import Any, cast

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.sampling_params import StructuredOutputsParams
from vllm.tool_parsers import ToolParserManager

from serving.workers.vllm import EngineCall, WrittenCall


def check_parser(name: str) -> None:
    """Load the parser before any call wants it.

    Args:
        name: vLLM's; empty: none is wanted.

    Raises:
        KeyError: vLLM has no such parser.
    """
    if name:
        ToolParserManager.get_tool_parser(name)


@dataclass(frozen=True, slots=True)
class ToolReader:
    """Reads one answer.

    Args:
        parser: of the model's family.
        request: the call, in vLLM's own form.
    """

    parser: Any
    request: Any

    @classmethod
    def of(cls, name: str, tokenizer: Any, call: EngineCall) -> "ToolReader":
        """The reader for `call`.

        Args:
            name: vLLM's of the parser, such as `hermes`.
            tokenizer: the model's.
            call: with the tools that it offers.

        Raises:
            ValueError: vLLM takes no such tools.
            KeyError: it has no such parser.
        """
        request = ChatCompletionRequest.model_validate(
            {
                "messages": [{"role": "user", "content": ""}],
                "tools": call.tools,
                "tool_choice": call.tool_choice or "auto",
            }
        )
        parser: Any = ToolParserManager.get_tool_parser(name)(tokenizer, cast(Any, request.tools))
        return cls(parser, parser.adjust_request(request))

    @property
    def keeps_special_tokens(self) -> bool:
        """Whether the parser looks for special tokens in the text."""
        return not self.request.skip_special_tokens

    @property
    def constraint(self) -> StructuredOutputsParams | None:
        """What decoding is held to; None: nothing."""
        return self.request.structured_outputs

    def read(self, text: str) -> tuple[str, tuple[WrittenCall, ...]]:
        """The words of a whole answer, and its calls."""
        held_to = cast(Any, self.constraint)
        if held_to is not None and held_to.json is not None:
            return "", self._forced(text)
        found = self.parser.extract_tool_calls(text, self.request)
        if not found.tools_called:
            return text, ()
        calls = tuple(WrittenCall(each.function.name, each.function.arguments) for each in found.tool_calls)
        return found.content or "", calls

    def _forced(self, text: str) -> tuple[WrittenCall, ...]:
        """The calls of an answer that was held to be calls and nothing else: a list of them, or the arguments of the
        one tool that was named.
        """
        try:
            written: Any = json.loads(text)
        except ValueError:
            return ()  # it was cut
        if isinstance(written, list):
            each_call = cast(list[dict[str, Any]], written)
            return tuple(WrittenCall(each["name"], json.dumps(each["parameters"])) for each in each_call)
        return (WrittenCall(self.request.tool_choice.function.name, text),)
