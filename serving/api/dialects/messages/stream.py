"""Encoding of a run as the event stream of Anthropic's Messages.

One block follows another, each with a start and a stop. Every frame has an `event:` line; SDKs drop frames
without it.
"""

from typing import Any, Literal

from conductor.model.failure import Failure
from conductor.model.messages import PendingCall
from conductor.model.reply import FinishReason
from conductor.run.events import AnswerDelta
from conductor.run.run import Run
from serving.api.dialect import CallId, Encoder
from serving.api.dialects.messages.message import (
    NO_CITATIONS,
    head,
    input_json,
    messages_error_body,
    signature,
    stop_of,
    tool_use,
    usage,
)
from serving.api.record_json import dumps, summary
from serving.api.request import ApiRequest

Json = dict[str, Any]
IN_DELTA = (
    "input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens",
    "output_tokens_details", "server_tool_use",
)  # fmt: skip
"""Fields of the usage in `message_delta`. They are running totals, and some clients read them only here."""


class MessagesEncoder(Encoder):
    """Encodes events as Anthropic's stream of a few dictionaries, without Pydantic."""

    def __init__(self, run: Run, request: ApiRequest, call_id: CallId) -> None:
        super().__init__(run, request.podium, call_id)
        self._index = -1
        self._open: Literal["thinking", "text"] | None = None

    def begin(self) -> bytes:
        return _frame("message_start", {"message": head(self._run.record)}) + self.heartbeat()

    def heartbeat(self) -> bytes:
        return _frame("ping", {})

    def _answer(self, piece: AnswerDelta) -> bytes:
        return self._think(piece.reasoning) + self._say(piece.text)

    def _finish(self, finish: FinishReason) -> bytes:
        return self._close() + self._end()

    def _suspend(self, calls: tuple[PendingCall, ...]) -> bytes:
        return self._close() + b"".join(map(self._call, calls)) + self._end()

    def _fail(self, failure: Failure) -> bytes:
        return _frame("error", messages_error_body(failure, self._run.record.id))

    def _show(self, progress: Json) -> bytes:
        return _frame("ping", {"podium": progress})

    def _think(self, text: str) -> bytes:
        if not text or self._podium.progress != "reasoning":
            return b""
        delta = {"type": "thinking_delta", "thinking": text}
        return self._into("thinking", {"thinking": "", "signature": ""}) + self._delta(delta)

    def _say(self, text: str) -> bytes:
        if not text:
            return b""
        return self._into("text", {"text": "", "citations": NO_CITATIONS}) + self._delta(
            {"type": "text_delta", "text": text}
        )

    def _call(self, pending: PendingCall) -> bytes:
        delta = {"type": "input_json_delta", "partial_json": input_json(pending.call)}
        return self._start(tool_use(self._call_id, pending)) + self._delta(delta) + self._stop()

    def _into(self, kind: Literal["thinking", "text"], empty: Json) -> bytes:
        """Start a block of type `kind`, unless such a block is open."""
        if self._open == kind:
            return b""
        frames = self._close() + self._start({"type": kind} | empty)
        self._open = kind
        return frames

    def _close(self) -> bytes:
        """Close the open block. A thinking block ends with its signature."""
        kind, self._open = self._open, None
        if kind is None:
            return b""
        signature_frame = b""
        if kind == "thinking":
            signature_frame = self._delta(
                {"type": "signature_delta", "signature": signature(self._run.record)}
            )
        return signature_frame + self._stop()

    def _start(self, block: Json) -> bytes:
        self._index += 1
        return _frame("content_block_start", {"index": self._index, "content_block": block})

    def _delta(self, delta: Json) -> bytes:
        return _frame("content_block_delta", {"index": self._index, "delta": delta})

    def _stop(self) -> bytes:
        return _frame("content_block_stop", {"index": self._index})

    def _end(self) -> bytes:
        records = self._run.records
        usage_json = usage(records.record)
        last = {
            "delta": stop_of(records.record) | {"stop_details": None, "container": None},
            "usage": {name: usage_json[name] for name in IN_DELTA},
            "podium": summary(records.record, records.inner, trace=self._podium.trace),
        }
        return _frame("message_delta", last) + _frame("message_stop", {})


def _frame(kind: str, rest: Json) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + dumps({"type": kind} | rest) + b"\n\n"
