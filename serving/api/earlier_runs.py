"""Stored runs and conversations that a caller may continue or read."""

from typing import Any

from conductor.errors import NotAllowed, TooLarge, UnknownName, quote
from conductor.run.record import RunRecords
from serving.accounts.caller import Caller
from serving.api.dialect import CallId
from serving.sessions.service import Service
from serving.store.conversations import Conversation
from serving.store.tool_ids import CallName


class CallersRuns:
    """Runs and conversations that `caller` may read. Implements `EarlierRuns`."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service, self._caller = service, caller

    async def find(self, id: str) -> RunRecords | None:
        records = await self._service.records(id, self._caller)
        return records if records is not None and self._caller.reads(records.record.account) else None

    async def call_id(self, id: str) -> CallId:
        ids = await self._service.store.call_ids()
        return lambda number: ids.sign(CallName(id, number))

    async def items(self, conversation: str) -> list[dict[str, Any]]:
        self.check_keeps()
        check_room(await self.own_conversation(conversation, "conversation"), "conversation")
        return await self._service.conversations.items(conversation)

    async def conversation(self, id: str, param: str = "conversation_id") -> Conversation:
        """Return a conversation. A conversation of another team counts as missing.

        Raises:
            UnknownName: the caller has no such conversation.
            StoreUnavailable: the store is unreachable.
        """
        stored = await self._service.conversations.get(id)
        if stored is None or not self._caller.reads(stored.account):
            raise UnknownName(f"{param}: conversation {quote(id)} not found.", param=param)
        return stored

    async def own_conversation(self, id: str, param: str = "conversation_id") -> Conversation:
        """Return a conversation that the caller may change.

        Raises:
            UnknownName: the caller has no such conversation.
            NotAllowed: the conversation belongs to another team, and the caller is an administrator.
        """
        stored = await self.conversation(id, param)
        if not self._caller.owns(stored.account):
            message = (
                f"{param}: the conversation belongs to another team. "
                "Administrators can read and delete it, but not change it."
            )
            raise NotAllowed(message, param=param)
        return stored

    def check_keeps(self) -> None:
        """Check that the caller's policy allows storing text, which conversations need.

        Raises:
            NotAllowed: a policy of the caller forbids it.
        """
        if whose := self._caller.policies.whose(lambda policy: policy.store_content):
            raise NotAllowed(
                f"conversation: the policy of this {whose} does not allow storing text, which conversations require. "
                f"Send the earlier turns in `input`. An administrator can change it with `podium {whose}s policy`.",
                param="conversation",
            )


def check_room(conversation: Conversation, param: str) -> None:
    """Check that a conversation can take more items.

    Raises:
        TooLarge: the conversation is full.
    """
    if conversation.is_full:
        message = f"{param}: conversation {quote(conversation.id)} is full. Start a new one with the items that you need."
        raise TooLarge(message, param=param)
