"""Gemini's streamGenerateContent with `alt=sse`.

Sources: https://ai.google.dev/api/generate-content#v1beta.GenerateContentResponse (chunks, each with a running
usageMetadata), https://ai.google.dev/gemini-api/docs/troubleshooting (errors, as google.rpc.Status). `extra={"block":
"SAFETY"}` blocks the prompt; `extra={"retry_delay": "3s"}` adds a RetryInfo to an error, `extra={"reason":
"API_KEY_INVALID"}` an ErrorInfo.
"""

import json

from tests.wires.server import Answer, sse, tokens

STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
          429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}  # fmt: skip


class GeminiWire:
    garbled = b"data: {this is not json\n\n"

    def events(self, answer: Answer) -> list[bytes]:
        """Return thoughts, words, and an empty part with the finish reason, each with usage. There is no end mark."""
        if "block" in answer.extra:
            return [sse({"promptFeedback": {"blockReason": answer.extra["block"]}, "modelVersion": answer.model,
                         "usageMetadata": {"promptTokenCount": answer.input_tokens}})]  # fmt: skip
        parts: list[dict[str, object]] = [
            {"text": piece, "thought": True} for piece in tokens(answer.reasoning)
        ]
        parts += [{"text": piece} for piece in tokens(answer.text)]
        chunks = [self.chunk(answer, part) for part in parts]
        return [*chunks, self.chunk(answer, {"text": ""}, answer.finish or "STOP")]

    def chunk(self, answer: Answer, part: dict[str, object], finish: str | None = None) -> bytes:
        candidate: dict[str, object] = {"content": {"parts": [part], "role": "model"}, "index": 0}
        usage: dict[str, object] = {"promptTokenCount": answer.input_tokens}
        if answer.cached_tokens:
            usage["cachedContentTokenCount"] = answer.cached_tokens
        if finish is not None:
            candidate["finishReason"] = finish
            usage["candidatesTokenCount"] = answer.output_tokens - answer.reasoning_tokens
            usage["thoughtsTokenCount"] = answer.reasoning_tokens
        return sse(
            {
                "candidates": [candidate],
                "usageMetadata": usage,
                "modelVersion": answer.model,
                "responseId": "r1",
            }
        )

    def error_event(self, answer: Answer) -> bytes:
        return sse(_error(answer, answer.extra.get("code", 500)))

    def error_body(self, answer: Answer) -> bytes:
        return json.dumps(_error(answer, answer.status)).encode()


def _error(answer: Answer, code: int) -> dict[str, object]:
    error: dict[str, object] = {"code": code, "message": answer.error, "status": STATUS.get(code, "UNKNOWN")}
    if "reason" in answer.extra:
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": answer.extra["reason"]}
        error["details"] = [info]
    if "retry_delay" in answer.extra:
        info = {
            "@type": "type.googleapis.com/google.rpc.RetryInfo",
            "retryDelay": answer.extra["retry_delay"],
        }
        error["details"] = [info]
    return {"error": error}
