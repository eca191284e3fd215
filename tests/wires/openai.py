"""OpenAI's Chat Completions, streamed.

Sources: https://platform.openai.com/docs/api-reference/chat-streaming (chunks),
https://platform.openai.com/docs/guides/error-codes (errors). `reasoning_content` is an addition of DeepSeek and vLLM.
`extra={"reasoning_field": "reasoning"}` is OpenRouter's name for it. `extra={"refusal": "..."}` is OpenAI's refusal
text.
"""

import json

from tests.wires.server import Answer, sse, tokens


class OpenAIWire:
    garbled = b"data: {this is not json\n\n"

    def events(self, answer: Answer) -> list[bytes]:
        """Return a role chunk, thoughts, words, a finish chunk, a usage chunk and [DONE]."""
        thought_field = answer.extra.get("reasoning_field", "reasoning_content")
        deltas = [{"role": "assistant", "content": "", "refusal": None}]
        deltas += [{thought_field: piece} for piece in tokens(answer.reasoning)]
        deltas += [{"content": piece} for piece in tokens(answer.text)]
        deltas += [{"refusal": piece} for piece in tokens(answer.extra.get("refusal", ""))]
        events = [
            self.chunk(answer, [{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas
        ]
        finish = [{"index": 0, "delta": {}, "finish_reason": answer.finish or "stop"}]
        return [
            *events,
            self.chunk(answer, finish),
            self.chunk(answer, [], _usage(answer)),
            b"data: [DONE]\n\n",
        ]

    def chunk(self, answer: Answer, choices: list[object], usage: object = None) -> bytes:
        return sse({
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": answer.model,
            "service_tier": "default", "system_fingerprint": "fp_1", "choices": choices, "usage": usage,
        })  # fmt: skip

    def error_event(self, answer: Answer) -> bytes:
        return sse(_error(answer))

    def error_body(self, answer: Answer) -> bytes:
        return json.dumps(_error(answer)).encode()


def _error(answer: Answer) -> dict[str, object]:
    kind = answer.extra.get("type", "invalid_request_error")
    return {"error": {"message": answer.error, "type": kind, "param": None, "code": answer.error_code}}


def _usage(answer: Answer) -> dict[str, object]:
    return {
        "prompt_tokens": answer.input_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": answer.input_tokens + answer.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": answer.cached_tokens,
            "audio_tokens": 0,
            "cache_write_tokens": answer.extra.get("cache_written", 0),
        },
        "completion_tokens_details": {"reasoning_tokens": answer.reasoning_tokens, "audio_tokens": 0},
    }
