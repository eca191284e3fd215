"""Messages, tools and cache marks in the format of Anthropic's API, and turns assembled from events.

API: https://platform.claude.com/docs/en/agents-and-tools/tool-use/overview. A turn that calls tools is sent
back with all of its blocks in order, because its thoughts are signed. With newer models, the signature also
covers everything before the thoughts, so consecutive turns of one role are merged only if they are not
signed.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from anthropic.types import RawMessageStreamEvent

from conductor.model.characters import whole
from conductor.model.messages import File, Image, Message, Part, Text, ToolCall, ToolResult
from conductor.plan.prompts import split_at_turns
from serving.workers.cache_marks import cache_control, has_marks
from serving.workers.output_limit import OutputMeter
from serving.workers.wire_tools import WireTools, arguments_of, function_of, name_of, object_or_input, wire_id

Block = dict[str, Any]
TYPE_OF = {"text_delta": "text", "thinking_delta": "thinking"}
"""Type of the block to start if the server sends a piece of a block that it has not started."""
ShowPart = Callable[[Image | File], Block]


def tools_json(tools: WireTools) -> dict[str, object]:
    if not tools:
        return {}
    listed = [
        {
            "name": function.name,
            "description": function.description,
            "input_schema": function.schema,
            **cache_control(tool.cache),
        }
        for tool in tools.tools
        for function in [function_of(tool)]
    ]
    return {"tools": listed, "tool_choice": _choice(tools)}


def _choice(tools: WireTools) -> dict[str, object]:
    if not tools.is_offered:
        return {"type": "none"}
    parallel: dict[str, object] = {} if tools.parallel else {"disable_parallel_tool_use": True}
    if tools.forced:
        return {"type": "tool", "name": tools.forced, **parallel}
    return {"type": "any" if tools.choice.mode == "required" else "auto", **parallel}


DOCUMENT_CHARS = 16_384
"""Length from which a text counts as a document, about which further questions are likely."""


LOOK_BACK = 20
"""Number of blocks in which the API looks for a cached prefix: the marked block and those before it."""


def add_marks(request: dict[str, Any], mark: Mapping[str, Any]) -> None:
    """Add cache marks to `request`, unless it has some already.

    1. At the end of the system prompt, or of the tools if there is no system prompt. Other requests share it.
    2. At the last block of the newest user turn. The next request starts with it.
    3. At the block before that. It is the end of the conversation if a step's assignment follows, and other steps
       and the next turn share it.
    4. At the last block of the user turn before. It was the newest one in the request before, and the API finds a
       cached prefix only within 20 blocks before a mark.

    The first request of a conversation gets the others only if it has tools or a long document. Assistant turns get no
    marks, because they may have to stay unchanged.

    Source: https://platform.claude.com/docs/en/build-with-claude/prompt-caching, sections "How automatic prefix
    checking works" and "What can be cached".

    Args:
        request: request to the API.
        mark: field `cache_control`. All marks have the same lifetime, because the API rejects a longer one after a
            shorter one.
    """
    if has_marks(request):
        return
    _mark_head(request, mark)
    users = [turn["content"] for turn in request["messages"] if turn["role"] == "user"]
    if not users:
        return
    before, newest = users[-2:-1], users[-1]
    is_forced = request.get("tool_choice", {}).get("type") in ("any", "tool")
    if before or (not is_forced and (request.get("tools") or any(map(_is_document, newest)))):
        for block in (*(blocks[-1] for blocks in before), *newest[-2:]):
            block.update(mark)


def add_plan_marks(request: dict[str, Any], mark: Mapping[str, Any], *, goes_on: bool) -> None:
    """Add cache marks to a request for a plan, unless it has some already.

    1. At the end of the system prompt. All plans share the instructions and the descriptions of the workers.
    2. At the end of the prompt. A further plan of the same run starts with it.
    3. At the block before that. It is the end of the conversation if a note follows.
    4. 20 blocks before that, because the API would not find a prefix that is further away. Turns without a plan add
       blocks.

    For marks 2 to 4, the conversation in the prompt is split into blocks. The plan of a conversation's first turn
    does not get them, because the next plan may never be written.

    Args:
        request: request to the API.
        mark: field `cache_control`. See `add_marks`.
        goes_on: whether the request belongs to a conversation that probably goes on.
    """
    if has_marks(request):
        return
    _mark_head(request, mark)
    prompt = request["messages"][0]
    parts = split_at_turns(prompt["content"][0]["text"]) if goes_on else []
    if len(parts) > 1:
        prompt["content"] = blocks = [{"type": "text", "text": part} for part in parts]
        for block in (blocks[-1], *blocks[-2::-LOOK_BACK][:2]):
            block.update(mark)


def _mark_head(request: dict[str, Any], mark: Mapping[str, Any]) -> None:
    system = request.get("system")
    if isinstance(system, str):
        request["system"] = [{"type": "text", "text": system, **mark}]
    elif head := system or request.get("tools"):
        head[-1].update(mark)


def _is_document(block: Block) -> bool:
    return block["type"] == "document" or len(block.get("text", "")) >= DOCUMENT_CHARS


def system_json(messages: Iterable[Message]) -> str | list[Block]:
    """Return the system messages as one text, or as a list of blocks if one of them has a cache mark."""
    systems = [message for message in messages if message.role == "system"]
    parts = [part for message in systems for part in message.parts if isinstance(part, Text)]
    if not any(part.cache for part in parts):
        return "\n\n".join(text for message in systems if (text := message.text).strip())
    blocks: list[Block] = []
    for part in parts:
        _add_text(blocks, part)
    return blocks


def _add_text(blocks: list[Block], part: Text) -> None:
    """Add a text block. The API rejects blank text, so its cache mark moves to the previous block."""
    if part.text.strip():
        blocks.append({"type": "text", "text": part.text, **cache_control(part.cache)})
    elif blocks:
        blocks[-1].update(cache_control(part.cache))


def turns_json(messages: Iterable[Message], show: ShowPart) -> list[dict[str, object]]:
    """Return the turns without system messages and blank text, merged by role except native ones."""
    turns: list[dict[str, object]] = []
    is_closed = True
    for message in messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if message.native is not None:
            turns.append({"role": role, "content": message.native.payload})
            is_closed = True
            continue
        blocks = _blocks(message.parts, show)
        if not blocks:
            continue
        if is_closed or turns[-1]["role"] != role:
            turns.append({"role": role, "content": []})
        cast(list[Block], turns[-1]["content"]).extend(blocks)
        is_closed = False
    return turns


def _blocks(parts: Iterable[Part], show: ShowPart) -> list[Block]:
    blocks: list[Block] = []
    for part in parts:
        match part:
            case ToolCall():
                name = name_of(part.namespace, part.name)
                call = {"id": wire_id(part.id), "name": name, "input": arguments_of(part)}
                blocks.append({"type": "tool_use", **call, **cache_control(part.cache)})
            case ToolResult():
                blocks.append(_result(part, show) | cache_control(part.cache))
            case Text():
                _add_text(blocks, part)
            case _:
                blocks.append(show(part) | cache_control(part.cache))
    return blocks


def _result(result: ToolResult, show: ShowPart) -> Block:
    content = _blocks(result.parts, show)
    if result.is_error and not content:
        content = [{"type": "text", "text": "The tool failed."}]  # the API requires content for an error
    block: Block = {"type": "tool_result", "tool_use_id": wire_id(result.id), "content": content}
    return block | ({"is_error": True} if result.is_error else {})


class TurnCollector:
    """Collector of an answer's blocks, from the events of its stream. A piece belongs to the newest block
    with its index, if any, because some servers repeat indices.
    """

    def __init__(self, meter: OutputMeter) -> None:
        self._meter = meter
        self._blocks: list[Block] = []
        self._pieces: list[dict[str, list[str]]] = []
        """Pieces of each block's content, by field."""
        self._newest: dict[object, int] = {}
        """Positions in `_blocks` of the newest block of each index."""

    def add(self, event: RawMessageStreamEvent) -> bool:
        """Add the next event. Return whether it starts a block or adds input to a tool call."""
        index = getattr(cast(object, event), "index", None)
        if event.type == "content_block_start":
            block = event.content_block.model_dump(mode="json", exclude_none=True)
            return self._begin(index, block)
        if event.type != "content_block_delta":
            return False
        at = self._newest.get(index, len(self._blocks) - 1 if index is None else -1)
        if at < 0 and event.delta.type in TYPE_OF:
            self._begin(index, {"type": TYPE_OF[event.delta.type]})
            at = self._newest[index]
        return at >= 0 and self._extend(at, event.delta)

    def _begin(self, index: object, block: Block) -> bool:
        """Start a block. Return False if the server only repeats the start of the current block."""
        self._meter.keep(block)
        at = self._newest.get(index)
        if at is not None and self._blocks[at] == block and not self._pieces[at].get("input"):
            return False
        if block["type"] == "tool_use":
            self._meter.begin_call()
        pieces = {name: [block[name]] for name in ("text", "thinking") if block.get(name)}
        self._newest[index] = len(self._blocks)
        self._blocks.append(block)
        self._pieces.append(pieces)
        return True

    def _extend(self, at: int, delta: Any) -> bool:
        pieces = self._pieces[at]
        match delta.type:
            case "text_delta":
                pieces.setdefault("text", []).append(delta.text)
            case "thinking_delta":
                pieces.setdefault("thinking", []).append(delta.thinking)
            case "signature_delta":
                self._blocks[at]["signature"] = delta.signature
            case "input_json_delta" if delta.partial_json:
                value = delta.partial_json
                piece = value if isinstance(value, str) else json.dumps(value)
                self._meter.add_arguments(piece)
                pieces.setdefault("input", []).append(piece)
                return True
            case _:
                pass
        return False

    @property
    def has_calls(self) -> bool:
        return any(block["type"] == "tool_use" for block in self._blocks)

    def calls(self, tools: WireTools) -> tuple[ToolCall, ...]:
        """Return the tool calls. A call without an id, or with the id of another one, gets a new id."""
        calls: list[ToolCall] = []
        for at, block in enumerate(self._blocks):
            if block["type"] == "tool_use":
                id = str(block.get("id") or "")
                id = "" if any(id == call.id for call in calls) else id
                calls.append(tools.call(id, block.get("name") or "", self._input_text(at)))
                block["id"] = calls[-1].id
        return tuple(calls)

    def turn(self) -> list[Block]:
        """Return the blocks in the form in which they must be sent back. Call `calls` first, which sets their
        ids.

        Blank text is dropped, because the API rejects it. If the input of a call is not a JSON object, it is
        wrapped in one.
        """
        turn: list[Block] = []
        for at, start in enumerate(self._blocks):
            block = start | {
                name: "".join(texts) for name, texts in self._pieces[at].items() if name != "input"
            }
            if block["type"] == "tool_use":
                block["input"] = object_or_input(self._input_text(at))
            if block["type"] != "text" or block.get("text", "").strip():
                turn.append(block)
        return turn

    def _input_text(self, at: int) -> str:
        initial: object = self._blocks[at].get("input") or {}
        streamed = whole("".join(self._pieces[at].get("input", ())))
        return streamed or (initial if isinstance(initial, str) else json.dumps(initial))
