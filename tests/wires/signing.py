"""Wires whose provider signs its turns and rejects turns that come back changed.

A signature covers the key, the model, the tools, all earlier turns and the turn itself. The first answer calls two
tools in parallel, the second calls one, the third is text.
"""

import base64
import hashlib
import json
from typing import Any, Protocol

from tests.wires.server import Answer, Request, sse

CALLS = [[("read", {"path": "a"}), ("read", {"path": "b"})], [("write", {"path": "c"})]]
Json = dict[str, Any]


class Signing(Protocol):
    """Check and answer of one wire."""

    def respond(self, request: Request) -> Answer: ...

    def events(self, request: Request, n_turns: int, calls: Any) -> list[bytes]: ...


class Changed(Exception):
    """A turn came back changed."""


def sign(request: Request, *facts: object) -> str:
    key = {name: request.headers.get(name) for name in ("authorization", "x-api-key", "x-goog-api-key")}
    return hashlib.sha256(json.dumps([key, *facts], sort_keys=True).encode()).hexdigest()


def check(is_so: bool, what: str) -> None:
    if not is_so:
        raise Changed(what)


class _Signing:
    def respond(self, request: Request) -> Answer:
        try:
            n_turns = self.check(request)
        except Changed as exc:
            return Answer(status=400, error=f"changed: {exc}")
        calls = CALLS[n_turns] if n_turns < len(CALLS) else []
        return Answer(instead=tuple(self.events(request, n_turns, calls)))

    def check(self, request: Request) -> int:
        raise NotImplementedError

    def events(self, request: Request, n_turns: int, calls: Any) -> list[bytes]:
        raise NotImplementedError


class SigningChat(_Signing):
    """Chat completions whose reasoning has to come back, as DeepSeek's."""

    def check(self, request: Request) -> int:
        messages, n_turns = request.body["messages"], 0
        for index, message in enumerate(messages):
            if message["role"] == "assistant" and message.get("tool_calls"):
                n_turns += 1
                expected = self._signature(request, messages[:index], message["tool_calls"])
                check(message.get("reasoning_content") == expected, "reasoning_content must be passed back")
                ids = {call["id"] for call in message["tool_calls"]}
                after = messages[index + 1 : index + 1 + len(ids)]
                check({each.get("tool_call_id") for each in after} == ids, "results")
        return n_turns

    def _signature(self, request: Request, before: Any, calls: Any) -> str:
        return sign(request, request.body["model"], request.body["tools"], before, calls)

    def events(self, request: Request, n_turns: int, calls: Any) -> list[bytes]:
        called = [
            {"id": f"call_{n_turns}_{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for n, (name, arguments) in enumerate(calls)
        ]  # fmt: skip
        deltas: list[Json] = []
        if called:
            signature = self._signature(request, request.body["messages"], called)
            deltas += [{"reasoning_content": signature[:9]}, {"reasoning_content": signature[9:]}]
            for index, call in enumerate(called):
                function = call["function"]
                deltas.append({"tool_calls": [{**call, "index": index, "function": {"name": function["name"], "arguments": ""}}]})  # fmt: skip
                pieces = function["arguments"][:4], function["arguments"][4:]
                deltas += [
                    {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in pieces
                ]
        else:
            deltas.append({"content": "done"})
        finish = "tool_calls" if called else "stop"
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        usage = {"prompt_tokens": 12, "completion_tokens": 40, "total_tokens": 52}
        return [*map(sse, [*chunks, {"choices": [], "usage": usage}]), b"data: [DONE]\n\n"]


class SigningResponses(_Signing):
    """Responses whose reasoning items are encrypted."""

    def check(self, request: Request) -> int:
        body, n_turns = request.body, 0
        check(body["store"] is False and body["include"] == ["reasoning.encrypted_content"], "store")
        items = body["input"]
        for index, item in enumerate(items):
            if item.get("type") == "reasoning":
                n_turns += 1
                rest = self._calls_after(items, index)
                expected = self._signature(request, items[:index], rest)
                check(item["encrypted_content"] == expected, "invalid_encrypted_content")
            if item.get("type") == "function_call":
                before = items[index - 1].get("type")
                check(before in ("reasoning", "function_call"), "a call without its required reasoning item")
        return n_turns

    def _calls_after(self, items: Any, index: int) -> list[Json]:
        calls: list[Json] = []
        for item in items[index + 1 :]:
            if item.get("type") != "function_call":
                break
            calls.append(item)
        return calls

    def _signature(self, request: Request, before: Any, calls: Any) -> str:
        return sign(request, request.body["model"], request.body["tools"], before, calls)

    def events(self, request: Request, n_turns: int, calls: Any) -> list[bytes]:
        items: list[Json] = [
            {"type": "function_call", "id": f"fc_{n_turns}_{n}", "call_id": f"call_{n_turns}_{n}", "name": name,
             "arguments": json.dumps(arguments), "status": "completed"} for n, (name, arguments) in enumerate(calls)
        ]  # fmt: skip
        events: list[Json] = [{"type": "response.created", "response": {"model": "the-model-1"}}]
        if items:
            signature = self._signature(request, request.body["input"], items)
            thought = {
                "type": "reasoning",
                "id": f"rs_{n_turns}",
                "summary": [],
                "encrypted_content": signature,
            }
            items = [thought, *items]
        else:
            content = [{"type": "output_text", "text": "done", "annotations": []}]
            items = [{"type": "message", "id": "msg_1", "role": "assistant", "content": content}]
            events.append({"type": "response.output_text.delta", "output_index": 0, "delta": "done"})
        events += [
            {"type": "response.output_item.done", "output_index": n, "item": item}
            for n, item in enumerate(items)
        ]
        usage = {"input_tokens": 12, "output_tokens": 40, "total_tokens": 52}
        end = {"status": "completed", "model": "the-model-1", "output": items, "usage": usage}
        return [
            sse(event, event["type"]) for event in [*events, {"type": "response.completed", "response": end}]
        ]


class SigningAnthropic(_Signing):
    """Messages whose thinking is bound to all earlier blocks."""

    def check(self, request: Request) -> int:
        turns, n_turns = request.body["messages"], 0
        for index, turn in enumerate(turns):
            is_call = any(block["type"] == "tool_use" for block in turn["content"])
            if turn["role"] != "assistant" or not is_call:
                continue
            n_turns += 1
            first, *rest = turn["content"]
            check(first["type"] == "thinking", "expected thinking or redacted_thinking")
            check(first["signature"] == self._signature(request, turns[:index], rest), "signature")
            ids = {block["id"] for block in rest if block["type"] == "tool_use"}
            results = turns[index + 1]["content"][: len(ids)]
            check(
                {block.get("tool_use_id") for block in results} == ids, "tool_result first, and of each call"
            )
        return n_turns

    def _signature(self, request: Request, before: Any, rest: Any) -> str:
        body = request.body
        return sign(request, body["model"], body.get("system"), body["tools"], before, rest)

    def events(self, request: Request, n_turns: int, calls: Any) -> list[bytes]:
        if calls:
            rest = [
                {"type": "redacted_thinking", "data": "c2VjcmV0"},
                {"type": "text", "text": "Let me look."},
            ]
            rest += [
                {"type": "tool_use", "id": f"toolu_{n_turns}_{n}", "name": name, "input": arguments}
                for n, (name, arguments) in enumerate(calls)
            ]
            signature = self._signature(request, request.body["messages"], rest)
            blocks: list[Json] = [{"type": "thinking", "thinking": "Hm.", "signature": signature}, *rest]
        else:
            blocks = [{"type": "text", "text": "done"}]
        start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "the-model-1", "content": [],
                 "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 12, "output_tokens": 1}}  # fmt: skip
        events: list[Json] = [{"type": "message_start", "message": start}]
        for index, block in enumerate(blocks):
            begun, deltas = _in_pieces(block)
            events.append({"type": "content_block_start", "index": index, "content_block": begun})
            events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": index})
        end = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
        events.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": 40}})
        return [sse(event, event["type"]) for event in [*events, {"type": "message_stop"}]]


def _in_pieces(block: Json) -> tuple[Json, list[Json]]:
    match block["type"]:
        case "thinking":
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case "text":
            return {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "tool_use":
            text = json.dumps(block["input"])
            pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in (text[:3], text[3:])]
            return {**block, "input": {}}, pieces
        case _:
            return block, []


class SigningGemini(_Signing):
    """Contents in which the part with a turn's first call is signed."""

    def check(self, request: Request) -> int:
        contents, n_turns = request.body["contents"], 0
        for index, content in enumerate(contents):
            called = [part for part in content["parts"] if "functionCall" in part]
            if content["role"] != "model" or not called:
                continue
            n_turns += 1
            check("thoughtSignature" in called[0], "missing a thought_signature")
            signature = base64.urlsafe_b64decode(called[0]["thoughtSignature"]).decode(errors="replace")
            bare = [{k: v for k, v in part.items() if k != "thoughtSignature"} for part in content["parts"]]
            check(
                signature == self._signature(request, contents[:index], bare), "Corrupted thought signature"
            )
            answers = [part["functionResponse"]["name"] for part in contents[index + 1]["parts"] if "functionResponse" in part]  # fmt: skip
            check(answers == [part["functionCall"]["name"] for part in called], "function responses")
        return n_turns

    def _signature(self, request: Request, before: Any, parts: Any) -> str:
        body = request.body
        return sign(request, body.get("systemInstruction"), body["tools"], before, parts)

    def events(self, request: Request, n_turns: int, calls: Any) -> list[bytes]:
        parts: list[Json] = [{"functionCall": {"name": name, "args": arguments}} for name, arguments in calls]
        if calls:
            parts = [{"text": "Hm.", "thought": True}, {"text": "Let me "}, {"text": "look."}, *parts]
            signature = self._signature(request, request.body["contents"], parts)
            parts[3] = parts[3] | {"thoughtSignature": base64.b64encode(signature.encode()).decode()}
        else:
            parts = [{"text": "done"}]
        usage = {"promptTokenCount": 12, "candidatesTokenCount": 40}
        chunks = [
            {"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]} for part in parts
        ]
        end = {"candidates": [{"content": {"role": "model", "parts": [{"text": ""}]}, "index": 0, "finishReason": "STOP"}],
               "usageMetadata": usage}  # fmt: skip
        return [sse(chunk) for chunk in [*chunks, end]]
