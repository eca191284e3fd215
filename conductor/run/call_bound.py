"""Upper bounds and estimates of the tokens that a call can use. They are computed without a tokenizer."""

import json

from msgspec.structs import replace

from conductor.model.call import AnswerFormat, Call, Sampling
from conductor.model.characters import BYTES_PER_TOKEN, byte_size
from conductor.model.messages import File, Image, Message, Part, Text, Tool, ToolCall, ToolResult
from conductor.model.usage import Usage
from conductor.model.worker import PoolMember

RESERVED_TOKENS_PER_IMAGE = 2_048
"""Number of tokens that are reserved for an image. If a model counts more, the excess is billed anyway."""
PDF_TOKENS, BYTES_PER_PDF_TOKEN, MOST_PDF_TOKENS = 4_096, 16, 300_000
"""Estimate for a PDF: base tokens, bytes per further token, and the most that providers accept."""
TOKENS_PER_MESSAGE = 16
"""Upper bound of a chat template's markup around a message, a call or a tool."""
TOKENS_PER_CONTINUATION = 1_024
"""Reserve for the prompt that asks a model to continue an answer, in tokens."""
TOKENS_PER_FORMAT = 3_072
"""Reserve for the prompts around an answer's schema and for the repair of an answer, in tokens."""
ANSWER_TOKENS = 1024
"""Tokens that a worker's context must have left for an answer whose length the request does not limit."""


def with_defaults(member: PoolMember, sampling: Sampling) -> Sampling:
    """Return a copy of `sampling` in which fields that are not set have the defaults of `member`."""
    own = member.defaults
    return replace(
        sampling,
        max_output_tokens=sampling.max_output_tokens or member.max_output_tokens,
        temperature=own.temperature if sampling.temperature is None else sampling.temperature,
        top_p=own.top_p if sampling.top_p is None else sampling.top_p,
        effort=sampling.effort or own.effort,
    )


def call_bound(member: PoolMember, call: Call) -> Usage:
    """Return the maximum token usage of `call` at `member`. `call` must already contain the member's defaults."""
    return Usage(input_bound(call), call.sampling.max_output_tokens or member.max_output_tokens)


def input_bound(call: Call) -> int:
    """Return an upper bound of the prompt's tokens without a tokenizer: a token is at least one UTF-8 byte."""
    messages = sum(_message_bound(message) for message in call.messages)
    tools = sum(_tool_bound(tool) for tool in call.tools.offered)
    prefix_bound = TOKENS_PER_CONTINUATION + byte_size(call.prefix) if call.prefix else 0
    return TOKENS_PER_MESSAGE + messages + tools + prefix_bound + _format_bound(call.answer_format)


def sent_bytes(call: Call) -> int:
    """Return the approximate bytes of a prompt, without reserves for prompts that may be added."""
    reserved_tokens = TOKENS_PER_CONTINUATION if call.prefix else 0
    if answer_format := call.answer_format:
        reserved_tokens += TOKENS_PER_FORMAT + _format_size(answer_format)
    return input_bound(call) - reserved_tokens


def input_estimate(call: Call) -> int:
    """Estimate the tokens of a prompt: four bytes of text per token, and the tokens of pictures and PDFs."""
    parts = (part for message in call.messages for part in message.all_parts)
    attached = sum(_part_bound(part) for part in parts if _is_attached(part))
    return (sent_bytes(call) - attached) // BYTES_PER_TOKEN + attached


def answer_estimate(member: PoolMember, sampling: Sampling) -> int:
    """Return how many tokens a context must have left for the answer. `sampling` has no defaults of `member` yet."""
    return sampling.max_output_tokens or min(member.max_output_tokens, ANSWER_TOKENS)


def _is_attached(part: Part) -> bool:
    return isinstance(part, Image) or (isinstance(part, File) and part.text is None)


def _message_bound(message: Message) -> int:
    native = _json_size(message.native.payload) if message.native else 0
    native += _json_size(message.thoughts) if message.thoughts else 0
    return TOKENS_PER_MESSAGE + native + sum(_part_bound(part) for part in message.parts)


def _part_bound(part: Part) -> int:
    match part:
        case Text(text=text):
            return byte_size(text)
        case Image():
            return RESERVED_TOKENS_PER_IMAGE
        case File():
            return TOKENS_PER_MESSAGE + byte_size(part.name) + file_tokens(part)
        case ToolCall():
            return TOKENS_PER_MESSAGE + byte_size(part.name) + byte_size(part.arguments)
        case ToolResult():
            return TOKENS_PER_MESSAGE + sum(_part_bound(each) for each in part.parts)


def file_tokens(file: File) -> int:
    """Return an upper estimate of the tokens of a file."""
    if file.text is not None:
        return file.n_bytes
    return min(PDF_TOKENS + file.n_bytes // BYTES_PER_PDF_TOKEN, MOST_PDF_TOKENS)


def _tool_bound(tool: Tool) -> int:
    schemas = _json_size(tool.parameters) + _json_size(tool.format)
    return TOKENS_PER_MESSAGE + byte_size(tool.name) + byte_size(tool.description) + schemas


def _format_bound(answer_format: AnswerFormat | None) -> int:
    """Count the schema twice: a server may receive it as a parameter and in the prompt."""
    if answer_format is None:
        return 0
    return TOKENS_PER_FORMAT + 2 * _format_size(answer_format)


def _format_size(answer_format: AnswerFormat) -> int:
    return _json_size(answer_format.schema) + byte_size(answer_format.description)


def _json_size(value: object) -> int:
    return 0 if value is None else byte_size(json.dumps(value, default=str))
