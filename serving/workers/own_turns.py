"""Which turns of a conversation go back to a provider as it wrote them, and what becomes of the others.

A provider signs its turns (thoughts, reasoning items, calls of tools) for itself, for the account that paid and for
what stood before them. So its own turns stay where they are and as they are, and the words between them depend on
nothing that comes later.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from conductor.model.call import Call
from conductor.model.messages import Message, Native
from conductor.plan.marks import with_stable_system
from conductor.plan.prompts import with_tools_as_text


class Origin:
    """Whose turns are whose.

    Args:
        worker: the name of the worker that asks.
        account: the provider's account that it asks with.
    """

    def __init__(self, worker: str, account: str) -> None:
        self.worker, self.account = worker, account

    def wrote(self, message: Message) -> bool:
        """Whether the turn goes back as it is."""
        native = message.native
        return native is not None and (native.worker, native.account) == (self.worker, self.account)

    def sign(self, payload: object) -> Native:
        """A turn that has to come back."""
        return Native(self.worker, self.account, payload)

    def messages(
        self, call: Call, *, keep_foreign: bool = False, keep_volatile: bool = False
    ) -> list[Message]:
        """The conversation of `call`, in which only its own turns are native.

        Args:
            call: what is asked.
            keep_foreign: the provider takes calls of tools that it did not write. Where they do not fit their
                results, it does not.
            keep_volatile: a client's volatile lines (`marks.py`) are for this provider.
        """
        messages = call.messages if keep_volatile else with_stable_system(call.messages)
        if keep_foreign and _is_paired(messages):
            return [
                each if each.native is None or self.wrote(each) else replace(each, native=None)
                for each in messages
            ]
        return self._with_text(messages)

    def _with_text(self, messages: Sequence[Message]) -> list[Message]:
        """The tools of others as words, between one of its own turns and the next."""
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
    """The results of the provider's own calls, and the rest."""
    own = tuple(each for each in message.tool_results if each.id in own_ids)
    rest = tuple(part for part in message.parts if part not in own)
    return (replace(message, parts=own) if own else None), (
        replace(message, parts=rest) if rest or not own else None
    )


def _is_paired(messages: Sequence[Message]) -> bool:
    """Whether every call has its result before the next turn, and every result its call, as providers want it."""
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
