"""Runs and conversations that a caller may go on with or ask about again."""

from typing import Any

from conductor.errors import NotAllowed, TooLarge, UnknownName, quote
from conductor.run.record import RunRecords
from serving.accounts.caller import Caller
from serving.api.dialect import CallId
from serving.runs.conversations import Conversation
from serving.runs.tool_ids import CallName
from serving.sessions.service import Service


class CallersRuns:
    """Those that `caller` may read, and those of its own key; see `EarlierRuns`."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service, self._caller = service, caller

    async def find(self, id: str) -> RunRecords | None:
        """See `EarlierRuns.find`."""
        records = await self._service.records(id, self._caller)
        return records if records is not None and self._caller.reads(records.record.account) else None

    async def call_id(self, id: str) -> CallId:
        """See `EarlierRuns.call_id`."""
        ids = await self._service.store.call_ids()
        return lambda number: ids.sign(CallName(id, number))

    async def items(self, conversation: str) -> list[dict[str, Any]]:
        """See `EarlierRuns.items`."""
        self.check_keeps()
        check_room(await self.own_conversation(conversation, "conversation"), "conversation")
        return await self._service.conversations.items(conversation)

    async def conversation(self, id: str, param: str = "conversation_id") -> Conversation:
        """The conversation of that id; another team's is as one that is not there.

        Raises:
            UnknownName: there is none for the caller.
            StoreUnavailable: the store is away.
        """
        found = await self._service.conversations.get(id)
        if found is None or not self._caller.reads(found.account):
            raise UnknownName(f"{param}: no conversation {quote(id)} is kept here.", param=param)
        return found

    async def own_conversation(self, id: str, param: str = "conversation_id") -> Conversation:
        """Likewise, to add to it or change it.

        Raises:
            NotAllowed: it is another team's, and the caller an administrator.
        """
        found = await self.conversation(id, param)
        if not self._caller.owns(found.account):
            message = f"{param}: the conversation is another team's. An administrator may read and delete it, and add nothing."
            raise NotAllowed(message, param=param)
        return found

    def check_keeps(self) -> None:
        """Conversations are texts, and kept.

        Raises:
            NotAllowed: by a policy no text of the caller's may be.
        """
        if whose := self._caller.policies.whose(lambda policy: policy.store_content):
            raise NotAllowed(
                f"conversation: by the policy of this {whose}, no text is kept, which conversations need. Send the earlier "
                f"turns in `input`. An administrator may change it: `podium {whose}s policy`.",
                param="conversation",
            )


def check_room(conversation: Conversation, param: str) -> None:
    """Whether more may be added to a conversation.

    Raises:
        TooLarge: it is full.
    """
    if conversation.is_full:
        message = f"{param}: {quote(conversation.id)} is full. Begin another one with the items that matter."
        raise TooLarge(message, param=param)
