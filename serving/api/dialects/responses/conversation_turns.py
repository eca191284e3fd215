"""What a response adds to its conversation: the items that were sent for it and those that it came to, once."""

from collections import deque
from typing import Any

from orjson import loads

from conductor.run.record import RunRecords
from serving.api.dialects.responses.earlier import input_items, show_again
from serving.api.dialects.responses.ids import response_id
from serving.api.dialects.responses.segments import part_of
from serving.api.encode import dumps
from serving.runs.content import kept_part
from serving.runs.service import Service, TurnKeeper
from serving.runs.tool_ids import CallName

ENDED_WELL = ("finished", "waiting")
MOST_KNOWN = 100
"""Turns that are known to be kept, the newest."""


def turn_keeper(service: Service) -> TurnKeeper:
    """What adds the newest response of a run to the conversation that the run was begun in, where there is one."""
    newest = deque[str](maxlen=MOST_KNOWN)

    async def keep(records: RunRecords) -> None:
        record = records.record
        shown_before: dict[str, Any] = record.task.echo.get("response", {})
        conversation = shown_before.get("conversation")
        if conversation is None or record.status not in ENDED_WELL or not record.task.permit.stores:
            return
        turn = response_id(record.id, part_of(record))
        if turn in newest:  # it is told before the answer is given, and when the run is closed
            return
        ids, kept = await service.store.call_ids(), kept_part(records)

        def call_id(number: int) -> str:
            return ids.sign(CallName(record.id, number))

        shown = show_again(kept, call_id)
        items = loads(
            dumps([*input_items(kept, call_id), *shown["output"]])
        )  # a model's text may be no UTF-8
        await service.conversations.append(conversation["id"], items, turn=turn)
        newest.append(turn)

    return keep
