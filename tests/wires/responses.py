"""Text events of OpenAI's Responses, streamed. `signing.py` has the tool calls.

Source: https://platform.openai.com/docs/api-reference/responses-streaming.
"""

import json

from tests.wires.server import Answer, sse, tokens


class ResponsesWire:
    garbled = b"event: response.output_text.delta\ndata: {this is not json\n\n"

    def events(self, answer: Answer) -> list[bytes]:
        """Return response.created, words, and response.completed or response.incomplete with the usage."""
        words = [self.event("response.output_text.delta", delta=piece) for piece in tokens(answer.text)]
        usage = {
            "input_tokens": answer.input_tokens,
            "output_tokens": answer.output_tokens,
            "total_tokens": answer.input_tokens + answer.output_tokens,
        }
        begun = {"id": "resp_1", "object": "response", "status": "in_progress", "model": answer.model}
        end = begun | {"status": "completed", "usage": usage}
        if answer.finish:
            end |= {"status": "incomplete", "incomplete_details": {"reason": answer.finish}}
        created = self.event("response.created", response=begun)
        return [created, *words, self.event(f"response.{end['status']}", response=end)]

    def event(self, kind: str, **fields: object) -> bytes:
        return sse({"type": kind, **fields}, event=kind)

    def error_event(self, answer: Answer) -> bytes:
        return self.event("error", code=answer.error_code or "server_error", message=answer.error)

    def error_body(self, answer: Answer) -> bytes:
        return json.dumps({"error": {"message": answer.error, "code": answer.error_code}}).encode()
