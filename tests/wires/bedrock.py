"""Anthropic's Messages as Amazon Bedrock streams them: each event as base64 in a frame of AWS's event stream.

Sources: https://docs.aws.amazon.com/AmazonS3/latest/API/RESTSelectObjectAppendix.html (frames),
https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_InvokeModelWithResponseStream.html.
"""

import base64
import json
import struct
import zlib

from tests.wires.anthropic import AnthropicWire
from tests.wires.server import Answer


class BedrockWire(AnthropicWire):
    def events(self, answer: Answer) -> list[bytes]:
        return [_frame(event.partition(b"data: ")[2].strip()) for event in super().events(answer)]


def _frame(event: bytes) -> bytes:
    content = json.dumps({"bytes": base64.b64encode(event).decode()}).encode()
    named = {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(
        struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
        for name, value in named.items()
    )
    prelude = struct.pack("!II", 16 + len(headers) + len(content), len(headers))
    head = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + content
    return head + struct.pack("!I", zlib.crc32(head))
