"""Writes the items of a response, and the events that announce them.

It knows nothing about runs. Only one item is open at a time, so that the index of an item is the number of
items before it.
"""

import base64
from collections.abc import Sequence
from typing import Any, Literal

from conductor.model.operation import TokenLogprob
from serving.api.dialects.chat.dialect import content_json
from serving.api.dialects.responses.segments import item_id
from serving.api.record_json import dumps

Json = dict[str, Any]
Phase = Literal["commentary", "final_answer"]


class ResponseWriter:
    """Writes the events of one response.

    Args:
        id: id of the response.
        shows_encrypted: whether reasoning items have `encrypted_content`.
        after: number of the last event that the client has. Events up to it are not written.

    Attributes:
        output: items that are complete.
    """

    def __init__(self, id: str, *, shows_encrypted: bool, after: int = -1) -> None:
        self.output: list[Json] = []
        self._after = after
        self._id, self._shows_encrypted = id, shows_encrypted
        self._seq = -1
        self._open: Json | None = None
        self._texts: list[str] = []
        self._likely: list[TokenLogprob] = []

    def event(self, kind: str, **fields: Any) -> bytes:
        self._seq += 1
        return self._write(kind, fields) if self._seq > self._after else b""

    def again(self, kind: str, **fields: Any) -> bytes:
        """Write an event with the last number again. A client that misses it misses nothing."""
        return self._write(kind, fields)

    def _write(self, kind: str, fields: Json) -> bytes:
        data = {"type": kind, "sequence_number": self._seq} | fields
        return b"event: " + kind.encode() + b"\ndata: " + dumps(data) + b"\n\n"

    def think(self, text: str) -> bytes:
        begin = self._begin("reasoning")
        self._texts.append(text)
        return begin + self._in_item("reasoning_summary_text.delta", summary_index=0, delta=text)

    def say(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """Write a piece of the answer, with the log probabilities of its tokens if they are known."""
        begin = self._begin("message")
        self._texts.append(text)
        self._likely += logprobs
        likely = content_json(logprobs)
        return begin + self._in_item("output_text.delta", content_index=0, delta=text, logprobs=likely)

    def call(self, item: Json) -> bytes:
        """Write a whole tool call. `item` has no id yet."""
        before = self.close("commentary")
        is_custom = item["type"] == "custom_tool_call"
        field, kind = (
            ("input", "custom_tool_call_input") if is_custom else ("arguments", "function_call_arguments")
        )
        item = {"id": self._item_id("ctc" if is_custom else "fc")} | item
        self._open = item
        name = {} if is_custom else {"name": item["name"]}
        frames = [
            self._item_event("added", item | {field: "", "status": "in_progress"}),
            self._in_item(f"{kind}.delta", delta=item[field]) if item[field] else b"",
            self._in_item(f"{kind}.done", **{field: item[field]}, **name),
        ]
        return before + b"".join(frames) + self._end(item)

    def close(self, phase: Phase = "commentary", status: str = "completed") -> bytes:
        """Close the open output item, if any, and return its events. `phase` applies to messages."""
        if self._open is None:
            return b""
        text = "".join(self._texts)
        if self._open["type"] == "reasoning":
            return self._close_reasoning(text, status)
        part = output_text(text, self._likely)
        item = self._open | {"status": status, "content": [part], "phase": phase}
        return (
            self._in_item("output_text.done", content_index=0, text=text, logprobs=part["logprobs"])
            + self._in_item("content_part.done", content_index=0, part=part)
            + self._end(item)
        )

    def _close_reasoning(self, text: str, status: str) -> bytes:
        assert self._open is not None, "an item is open"
        part = {"type": "summary_text", "text": text}
        item = self._open | {"status": status, "summary": [part]}
        if self._shows_encrypted:
            item["encrypted_content"] = base64.urlsafe_b64encode(str(item["id"]).encode()).decode()
        return (
            self._in_item("reasoning_summary_text.done", summary_index=0, text=text)
            + self._in_item("reasoning_summary_part.done", summary_index=0, part=part)
            + self._end(item)
        )

    def _begin(self, kind: Literal["reasoning", "message"]) -> bytes:
        """Open an item of type `kind`, unless such an item is open."""
        if self._open is not None and self._open["type"] == kind:
            return b""
        before = self.close()
        if kind == "reasoning":
            item: Json = {"id": self._item_id("rs"), "type": kind, "summary": [], "status": "in_progress"}
            part: Json = {"type": "summary_text", "text": ""}
            place: Json = {"summary_index": 0, "part": part}
            opening = "reasoning_summary_part.added"
        else:
            item = {
                "id": self._item_id("msg"),
                "type": kind,
                "role": "assistant",
                "status": "in_progress",
                "content": [],
            }
            place, opening = {"content_index": 0, "part": output_text("")}, "content_part.added"
        self._open, self._texts, self._likely = item, [], []
        return before + self._item_event("added", item) + self._in_item(opening, **place)

    def _end(self, item: Json) -> bytes:
        frame = self._item_event("done", item)
        self.output.append(item)
        self._open = None
        return frame

    def _item_event(self, what: str, item: Json) -> bytes:
        return self.event(f"response.output_item.{what}", output_index=len(self.output), item=item)

    def _in_item(self, kind: str, **fields: Any) -> bytes:
        assert self._open is not None, "an item is open"
        place = {"item_id": self._open["id"], "output_index": len(self.output)}
        return self.event(f"response.{kind}", **place, **fields)

    def _item_id(self, prefix: str) -> str:
        return item_id(prefix, self._id, len(self.output))


def output_text(text: str, logprobs: Sequence[TokenLogprob] = ()) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": content_json(logprobs)}
