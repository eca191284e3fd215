"""Anthropic's Messages, streamed.

Sources: https://platform.claude.com/docs/en/build-with-claude/streaming (events, pings, errors in the stream),
https://platform.claude.com/docs/en/api/errors (statuses). `extra={"cache_written": n}` is the number of tokens
written to the cache, and `cache_written_1h` how many of them stay for an hour.
"""

import json

from tests.wires.server import Answer, sse, tokens


class AnthropicWire:
    garbled = b"event: content_block_delta\ndata: {this is not json\n\n"

    def events(self, answer: Answer) -> list[bytes]:
        """Return message_start, ping, a thinking block if there are thoughts, a text block, message_delta,
        message_stop.
        """
        blocks = []
        if answer.reasoning:
            start = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in tokens(answer.reasoning)]
            blocks.append((start, [*deltas, {"type": "signature_delta", "signature": "c2lnbmVk"}]))
        words = [{"type": "text_delta", "text": piece} for piece in tokens(answer.text)]
        blocks.append(({"type": "text", "text": ""}, words))
        events = [self.event("message_start", message=_message(answer)), self.event("ping")]
        for index, (start, deltas) in enumerate(blocks):
            events.append(self.event("content_block_start", index=index, content_block=start))
            events += [self.event("content_block_delta", index=index, delta=delta) for delta in deltas]
            events.append(self.event("content_block_stop", index=index))
        end = {"stop_reason": answer.finish or "end_turn", "stop_sequence": None}
        usage: dict[str, object] = {"output_tokens": answer.output_tokens}
        if answer.reasoning_tokens:
            usage["output_tokens_details"] = {"thinking_tokens": answer.reasoning_tokens}
        return [*events, self.event("message_delta", delta=end, usage=usage), self.event("message_stop")]

    def event(self, kind: str, **fields: object) -> bytes:
        return sse({"type": kind, **fields}, event=kind)

    def error_event(self, answer: Answer) -> bytes:
        return sse(_error(answer), event="error")

    def error_body(self, answer: Answer) -> bytes:
        return json.dumps(_error(answer)).encode()


def _error(answer: Answer) -> dict[str, object]:
    error: dict[str, object] = {
        "type": answer.extra.get("type", "invalid_request_error"),
        "message": answer.error,
    }
    if answer.error_code:
        error["details"] = {"error_code": answer.error_code}
    return {"type": "error", "error": error, "request_id": "req_1"}


def _message(answer: Answer) -> dict[str, object]:
    written = answer.extra.get("cache_written", 0)
    usage: dict[str, object] = {
        "input_tokens": answer.input_tokens - answer.cached_tokens - written,
        "cache_read_input_tokens": answer.cached_tokens,
        "cache_creation_input_tokens": written,
        "output_tokens": 1,
    }
    if written:
        for_an_hour = answer.extra.get("cache_written_1h", 0)
        usage["cache_creation"] = {
            "ephemeral_5m_input_tokens": written - for_an_hour,
            "ephemeral_1h_input_tokens": for_an_hour,
        }
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": answer.model, "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
