"""Native turns, which are turns of a conversation that are sent back to their provider unchanged.

A provider signs its turns (thoughts, reasoning items, tool calls) for one account and for the conversation
before them. Therefore its own turns keep their place and their content, and the text between them must not
depend on later turns. Turns of other providers are rewritten.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from conductor.model.call import Call
from conductor.model.messages import Message, Native
from conductor.plan.prompt_parts import with_stable_system
from conductor.plan.prompts import with_tools_as_text


class Origin:
    """Worker and account at the provider that write turns."""

    def __init__(self, worker: str, account: str) -> None:
        self.worker, self.account = worker, account

    def wrote(self, message: Message) -> bool:
        """Return whether the turn was written by this worker and account, so that it goes back unchanged."""
        native = message.native
        return native is not None and (native.worker, native.account) == (self.worker, self.account)

    def sign(self, payload: object) -> Native:
        return Native(self.worker, self.account, payload)

    def messages(
        self, call: Call, *, keep_foreign: bool = False, keep_volatile: bool = False
    ) -> list[Message]:
        """Return the conversation of `call`, in which only turns of this origin are native.

        With `keep_foreign`, tool calls of other models are kept if each has its result, or else become text.
        `keep_volatile` keeps lines that change with each request.
        """
        messages = call.messages if keep_volatile else with_stable_system(call.messages)
        if keep_foreign and _is_paired(messages):
            return [
                each if each.native is None or self.wrote(each) else replace(each, native=None)
                for each in messages
            ]
        return self._with_text(messages)

    def _with_text(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with the tool calls and results of other models rewritten as text."""
        spoken: list[Message] = []
        others: list[Message] = []
        own_ids: set[str] = set()
        for message in messages:
            is_own = self.wrote(message)
            own_ids |= {call.id for call in message.tool_calls} if is_own else set()
            own, foreign = (message, None) if is_own else _split_results(message, own_ids)
            if own is not None:
                spoken, others = [*spoken, *with_tools_as_text(others), own], []
            if foreign is not None:
                others.append(foreign)
        return [*spoken, *with_tools_as_text(others)]


def _split_results(message: Message, own_ids: set[str]) -> tuple[Message | None, Message | None]:
    """Split a message into the results of the provider's own calls and the rest."""
    own = tuple(each for each in message.tool_results if each.id in own_ids)
    rest = tuple(part for part in message.parts if part not in own)
    return (replace(message, parts=own) if own else None), (
        replace(message, parts=rest) if rest or not own else None
    )


def _is_paired(messages: Sequence[Message]) -> bool:
    """Return whether every tool call has a result before the next turn, and every result belongs to a call."""
    waiting: set[str] = set()
    for message in messages:
        if message.role == "tool":
            for result in message.tool_results:
                if result.id not in waiting:
                    return False
                waiting.discard(result.id)
        elif waiting:
            return False
        waiting |= {call.id for call in message.tool_calls}
    return not waiting
