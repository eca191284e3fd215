"""One turn of an assistant on OpenAI's chat wire, while it comes: its calls of tools, and how it goes back."""

from collections.abc import Sequence
from dataclasses import replace

from conductor.model.tools import Tool
from conductor.model.worker import Delta, FinishReason
from serving.workers.chat_chunks import ChatChunk
from serving.workers.openai_tools import ToolCallReader

THOUGHT_FIELDS = ("reasoning_content", "reasoning")


class ChatTurn:
    """See the module.

    Args:
        offered: the tools of the call.
    """

    def __init__(self, offered: Sequence[Tool]) -> None:
        self._offered, self._reader = tuple(offered), ToolCallReader()
        self._texts, self._thoughts, self._field = list[str](), list[str](), ""

    def feed(self, chunk: ChatChunk) -> None:
        """One more chunk. Only a turn that may call tools goes back, so no other is kept."""
        delta = chunk.choice.delta if chunk.choice else None
        if delta is None or not self._offered:
            return
        if delta.content:
            self._texts.append(delta.content)
        for name in THOUGHT_FIELDS:
            said = getattr(delta, name)
            if isinstance(said, str) and said and self._field in ("", name):
                self._field = name
                self._thoughts.append(said)
        self._reader.feed(delta.tool_calls or ())

    def end(self, last: Delta, worker: str, account: str) -> Delta:
        """The end of the answer, with the calls. Of an answer that was cut, or filtered, none is whole; some
        servers finish a turn with calls as any other.
        """
        if last.finish not in (FinishReason.TOOL_CALLS, FinishReason.STOP):
            return last
        calls = self._reader.calls(self._offered)
        if not calls:
            return last
        text, thoughts = "".join(self._texts), "".join(self._thoughts)
        native = self._reader.native(worker, account, text, thoughts, self._field)
        return replace(last, finish=FinishReason.TOOL_CALLS, tool_calls=calls, native=native)
