"""The most that a call can take, known before it is made: what a budget holds for it."""

import json

from conductor.model.answer_format import AnswerFormat
from conductor.model.call import Call
from conductor.model.messages import File, Image, Message, Part, Text, ToolCall, ToolResult
from conductor.model.pool_member import PoolMember
from conductor.model.tools import Tool
from conductor.model.usage import Usage

TOKENS_PER_IMAGE = 2_048
"""What is held for a picture. Some models count more: what passes the hold is billed all the same."""
PDF_TOKENS, BYTES_PER_PDF_TOKEN, MOST_PDF_TOKENS = 4_096, 16, 300_000
"""Of a PDF: so many, and one more for so many bytes of it, but not more than the last, which is what providers take
at most. An estimate, as a picture's."""
TOKENS_PER_MESSAGE = 16
"""Upper bound of a chat template's marks around a message, a call or a tool."""
TOKENS_PER_CONTINUATION = 1_024
"""Of the words that ask to go on with an answer."""
TOKENS_PER_FORMAT = 3_072
"""Of the words around an answer's schema, and of those that ask to repair an answer."""


def call_bound(member: PoolMember, call: Call) -> Usage:
    """The most that `call` can take at `member`; its settings are already in `call`."""
    return Usage(input_bound(call), call.sampling.max_output_tokens or member.max_output_tokens)


def input_bound(call: Call) -> int:
    """An upper bound of the prompt's tokens, without any model's tokenizer: a token is at least one byte of
    UTF-8.
    """
    messages = sum(_message_bound(message) for message in call.messages)
    tools = sum(_tool_bound(tool) for tool in call.tools.offered)
    begun = TOKENS_PER_CONTINUATION + _size(call.prefix) if call.prefix else 0
    return TOKENS_PER_MESSAGE + messages + tools + begun + _format_bound(call.answer_format)


def sent_bytes(call: Call) -> int:
    """Return about how many bytes of prompt `call` sends: nothing is held for words that may be put around it."""
    held = TOKENS_PER_CONTINUATION if call.prefix else 0
    if wanted := call.answer_format:
        held += TOKENS_PER_FORMAT + _format_size(wanted)
    return input_bound(call) - held


def _message_bound(message: Message) -> int:
    native = _json_size(message.native.payload) if message.native else 0
    native += _json_size(message.thoughts) if message.thoughts else 0
    return TOKENS_PER_MESSAGE + native + sum(_part_bound(part) for part in message.parts)


def _part_bound(part: Part) -> int:
    match part:
        case Text(text=text):
            return _size(text)
        case Image():
            return TOKENS_PER_IMAGE
        case File():
            return TOKENS_PER_MESSAGE + _size(part.name) + file_tokens(part)
        case ToolCall():
            return TOKENS_PER_MESSAGE + _size(part.name) + _size(part.arguments)
        case ToolResult():
            return TOKENS_PER_MESSAGE + sum(_part_bound(each) for each in part.parts)


def file_tokens(file: File) -> int:
    """About the most tokens that a file is read as."""
    if file.text is not None:
        return file.n_bytes
    return min(PDF_TOKENS + file.n_bytes // BYTES_PER_PDF_TOKEN, MOST_PDF_TOKENS)


def _tool_bound(tool: Tool) -> int:
    schemas = _json_size(tool.parameters) + _json_size(tool.format)
    return TOKENS_PER_MESSAGE + _size(tool.name) + _size(tool.description) + schemas


def _format_bound(wanted: AnswerFormat | None) -> int:
    """Of a schema twice: a server may be sent it beside the words that tell it to the model."""
    if wanted is None:
        return 0
    return TOKENS_PER_FORMAT + 2 * _format_size(wanted)


def _format_size(wanted: AnswerFormat) -> int:
    return _json_size(wanted.schema) + _size(wanted.description)


def _json_size(value: object) -> int:
    return 0 if value is None else _size(json.dumps(value, default=str))


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
