"""Adds a response to its conversation: the items of its input and of its output, once."""

from collections import deque
from typing import Any

from orjson import loads

from conductor.run.record import RunRecords
from serving.api.dialects.responses.earlier import input_items, show_again
from serving.api.dialects.responses.ids import response_id
from serving.api.dialects.responses.segments import part_of
from serving.api.record_json import dumps
from serving.sessions.service import Service
from serving.store.content import kept_part
from serving.store.tool_ids import CallName

ENDED_WELL = ("finished", "waiting")
MOST_KNOWN = 100
"""Number of the newest turns to remember as stored."""


class ConversationTurns:
    """Adds the newest response of a run to the conversation of the run. Implements `TurnKeeper`."""

    def __init__(self) -> None:
        self._newest = deque[str](maxlen=MOST_KNOWN)

    async def __call__(self, service: Service, records: RunRecords) -> None:
        """Add the response, unless it was added before or belongs to no conversation."""
        record = records.record
        echo: dict[str, Any] = record.task.echo.get("response", {})
        conversation = echo.get("conversation")
        if conversation is None or record.status not in ENDED_WELL or not record.task.permit.stores:
            return
        turn = response_id(record.id, part_of(record))
        if turn in self._newest:  # called before the answer is sent, and again when the run is closed
            return
        stored_run = service.sessions.find_kept(record.id) or kept_part(records)
        ids = await service.store.call_ids()

        def call_id(number: int) -> str:
            return ids.sign(CallName(record.id, number))

        response = show_again(stored_run, call_id)
        # `dumps` replaces lone surrogates in a model's text
        items = loads(dumps([*input_items(stored_run, call_id), *response["output"]]))
        await service.conversations.append(conversation["id"], items, turn=turn)
        self._newest.append(turn)
