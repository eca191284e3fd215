"""What a response adds to its conversation: the items that were sent for it and those that it came to, once."""

from typing import Any

from orjson import loads

from conductor.run.record import RunRecords
from serving.api.dialects.responses.earlier import input_items, show_again
from serving.api.encode import dumps
from serving.runs.content import kept_part
from serving.runs.service import Service, TurnKeeper
from serving.runs.tool_ids import CallName

ENDED_WELL = ("finished", "waiting")


def turn_keeper(service: Service) -> TurnKeeper:
    """What adds the newest response of a run to the conversation that the run was begun in, where there is one."""

    async def keep(records: RunRecords) -> None:
        record = records.record
        shown_before: dict[str, Any] = record.task.echo.get("response", {})
        conversation = shown_before.get("conversation")
        if conversation is None or record.status not in ENDED_WELL or not record.task.permit.stores:
            return
        ids, kept = await service.store.call_ids(), kept_part(records)

        def call_id(number: int) -> str:
            return ids.sign(CallName(record.id, number))

        shown = show_again(kept, call_id)
        items = loads(
            dumps([*input_items(kept, call_id), *shown["output"]])
        )  # a model's text may be no UTF-8
        await service.conversations.append(conversation["id"], items, turn=shown["id"])

    return keep
