"""Lookup of responses, conversations and items that a request refers to. Responses are rebuilt from records."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any

from conductor.errors import BadTask, NotAllowed, TooLarge, UnknownName, quote
from conductor.model.messages import Message
from conductor.run.record import Record, RunRecords
from serving.accounts.caller import Caller
from serving.api.dialect import CallId
from serving.api.dialects.read_body import PartCount
from serving.api.dialects.responses.items import Refer, Transcript, items_of
from serving.api.dialects.responses.schema import PACKED, Referred
from serving.api.dialects.responses.segments import (
    as_of,
    echo_of_newest,
    input_messages,
    own_conversation,
    part_of,
    response_of,
    run_of,
    turns_of,
)
from serving.api.dialects.responses.stream import show
from serving.api.request import ApiRequest, Podium, check_size, texts_of
from serving.edge.checks import too_much_text
from serving.sessions.run_admission import bytes_of, bytes_of_record
from serving.sessions.service import Service
from serving.settings.sections import LimitSettings
from serving.store.conversations import MOST_ITEMS, Conversation
from serving.store.tool_ids import CallName

Json = dict[str, Any]
References = Mapping[str, Sequence[Message]]
UNDER_WAY = ("running", "detached")
MOST_RESPONSES = 128
"""Maximum number of responses whose items a request may refer to."""
LOOKS, POLL_S = 10, 0.05
"""Number and interval of lookups for a response that another replica may be about to store."""


class CallersRuns:
    """Stored runs and conversations that `caller` may continue or read. Teams take turns to load them, and within
    a team its keys.
    """

    def __init__(self, service: Service, caller: Caller) -> None:
        self._service, self._caller = service, caller

    @property
    def limits(self) -> LimitSettings:
        return self._service.settings().limits

    def turn(self) -> AbstractAsyncContextManager[None]:
        """Return the block in which the caller has a turn to load or unpack texts."""
        return self._service.sessions.admission.loads.turn(self._caller.account)

    def memory(self, n_bytes: int) -> AbstractContextManager[None]:
        """Return the block in which `n_bytes` of loaded texts count towards `limits.max_running_bytes`. It raises
        Overloaded if they do not fit.
        """
        return self._service.sessions.admission.memory.hold(self._caller.account, n_bytes, "interactive")

    def conversation_name(self, record: Record) -> str:
        """Return the name of an earlier run's conversation, which its next turn keeps.

        The turns of another key are another conversation, because ids are never shared between keys.
        """
        id = record.task.sampling.options.conversation
        if id and record.account.key_id == self._caller.account.key_id:
            return id
        return f"run:{id or record.id}"

    async def find(self, id: str) -> RunRecords | None:
        """Return a run, or None if the caller has no such run. Raise Overloaded if there is no memory to load it."""
        records = await self._service.records(id, self._caller)
        return records if records is not None and self._caller.reads(records.record.account) else None

    async def call_id(self, id: str) -> CallId:
        """Return a function for the client's ids of a run's tool calls. It raises as `find` does."""
        ids = await self._service.store.call_ids()
        return lambda number: ids.sign(CallName(id, number))

    async def items(self, conversation: str, memory: ExitStack) -> list[Json]:
        """Return a conversation's items, oldest first, if the caller has it and may store texts. Their size is
        checked before they are loaded, and counted until `memory` is closed.
        """
        self.check_keeps()
        async with self.turn():
            stored = await self.own_conversation(conversation, "conversation")
            check_room(stored, "conversation")
            if stored.n_bytes > self.limits.max_body_bytes:
                message = f"conversation: {quote(conversation)} has more than {self.limits.max_body_bytes} bytes (limits.max_body_bytes). Start a new one with the items that you need."
                raise TooLarge(message, param="conversation")
            memory.enter_context(self.memory(stored.n_bytes))
            return await self._service.conversations.items(conversation, MOST_ITEMS)

    async def conversation(self, id: str, param: str = "conversation_id") -> Conversation:
        """Return a conversation. Raise UnknownName if it is missing or another team's."""
        stored = await self._service.conversations.get(id)
        if stored is None or not self._caller.reads(stored.account):
            raise UnknownName(f"{param}: conversation {quote(id)} not found.", param=param)
        return stored

    async def own_conversation(self, id: str, param: str = "conversation_id") -> Conversation:
        """Return a conversation that the caller may change. An administrator may not change another team's."""
        stored = await self.conversation(id, param)
        if not self._caller.owns(stored.account):
            message = (
                f"{param}: the conversation belongs to another team. "
                "Administrators can read and delete it, but not change it."
            )
            raise NotAllowed(message, param=param)
        return stored

    def check_keeps(self) -> None:
        """Check that the policy allows storing text, which conversations need, or raise NotAllowed."""
        if owner := self._caller.policies.refusing_owner(lambda policy: policy.store_content):
            raise NotAllowed(
                f"conversation: the policy of this {owner} does not allow storing text, which conversations require. "
                f"Send the earlier turns in `input`. An administrator can change it with `podium {owner}s policy`.",
                param="conversation",
            )


def check_room(conversation: Conversation, param: str) -> None:
    """Check that a conversation can take more items, or raise TooLarge."""
    if conversation.is_full:
        message = f"{param}: conversation {quote(conversation.id)} is full. Start a new one with the items that you need."
        raise TooLarge(message, param=param)


async def find_response(response: str, earlier: CallersRuns, *, is_over: bool = False) -> RunRecords | None:
    """Return the run of a response as it was at its end, or None if the caller has none. Wait up to half a
    second until another replica has stored it and, with `is_over`, until it has ended.
    """
    run_and_part = run_of(response)
    if run_and_part is None:
        return None
    response_records: RunRecords | None = None
    for _ in range(LOOKS):
        records = await earlier.find(run_and_part[0])
        response_records = as_of(records, run_and_part[1]) if records else None
        if records is not None and not _is_stored(response_records or records):
            return None
        if response_records is not None and not (is_over and response_records.record.status in UNDER_WAY):
            break
        await asyncio.sleep(POLL_S)
    return response_records


def _is_stored(records: RunRecords) -> bool:
    record = records.record
    return records.has_content and bool(record.task.echo) and echo_of_newest(record)["response"]["store"]


@dataclass(frozen=True, slots=True)
class Referenced:
    """Conversation of a request with everything that it refers to.

    Args:
        messages: all messages, earlier turns first.
        n_earlier: number of messages of earlier turns.
        name: see `ApiRequest.conversation_name`. Empty if the request refers to no earlier turn.
    """

    messages: tuple[Message, ...]
    n_earlier: int
    name: str


async def conversation_of(request: Referred, earlier: CallersRuns) -> Referenced:
    """Return the conversation of a request. Loaded texts count towards the memory for runs meanwhile.

    Raises:
        BadTask: a reference is missing or in progress.
        TooLarge: the texts are longer than `limits.max_text_bytes`, or the JSON inside the compaction items is
            longer than `limits.max_body_bytes`.
        Overloaded: there is no memory for them.
    """
    with ExitStack() as memory:
        return await _load(request, earlier, memory)


async def _load(request: Referred, earlier: CallersRuns, memory: ExitStack) -> Referenced:
    transcript = Transcript(part_count=PartCount(earlier.limits.max_body_bytes))
    name = f"conversation:{request.conversation}" if request.conversation else ""
    if request.conversation and request.previous_response_id is not None:
        message = "conversation cannot be combined with previous_response_id. Send only one of them."
        raise BadTask(message, param="conversation")
    if request.conversation:
        items = answerable(await earlier.items(request.conversation, memory))
        is_packed = any(item.get("type") in PACKED for item in items)
        await _add(transcript, items, lambda _item, _at: (), earlier, is_packed=is_packed)
        check_size(transcript.messages, "conversation")
    if request.previous_response_id is not None:
        turns, name = await _turns_before(request.previous_response_id, earlier)
        transcript.messages += turns
        memory.enter_context(earlier.memory(bytes_of(turns)))
    n_earlier = len(transcript.messages)
    references = await _find_references(request.input, earlier, memory)

    def refer(item: str, at: str) -> Sequence[Message]:
        return _find_referenced(references, item, at)

    await _add(transcript, request.input, refer, earlier, is_packed=request.is_packed)
    check_size(transcript.messages, "input")
    _check_text(transcript.messages, earlier)
    if not transcript.messages:
        raise BadTask("input has no messages. Send at least one.", param="input")
    return Referenced(tuple(transcript.messages), n_earlier, name)


async def _add(
    transcript: Transcript,
    items: str | Sequence[Json],
    refer: Refer,
    earlier: CallersRuns,
    *,
    is_packed: bool,
) -> None:
    """Add items to a transcript, in a thread if they have to be unpacked."""
    if not is_packed:
        return transcript.add(items, refer)
    async with earlier.turn():
        return await asyncio.to_thread(transcript.add, items, refer)


def _check_text(messages: Iterable[Message], earlier: CallersRuns) -> None:
    most = earlier.limits.max_text_bytes
    if sum(map(len, texts_of(messages))) > most:
        raise too_much_text(most)


def answerable(items: Sequence[Json]) -> list[Json]:
    """Return `items` without tool results whose call was deleted or is too old."""
    calls = {
        item["call_id"] for item in items if str(item.get("type")).endswith("_call") and "call_id" in item
    }
    return [
        item
        for item in items
        if not str(item.get("type")).endswith("_output") or item.get("call_id") in calls
    ]


async def _turns_before(response: str, earlier: CallersRuns) -> tuple[Sequence[Message], str]:
    """Return all turns up to a response, and the name of its conversation. The rest of its record is dropped."""
    param = "previous_response_id"
    records = await find_response(response, earlier, is_over=True)
    if records is None:
        raise BadTask(f"{param}: response {quote(response)} not found.", param=param)
    if records.record.status in UNDER_WAY:
        raise BadTask(
            f"{param}: response {quote(response)} is still in progress. Retry when it has ended.", param=param
        )
    turns = turns_of(records.record, await earlier.call_id(records.record.id))
    _check_text(turns, earlier)
    return turns, earlier.conversation_name(records.record)


async def _find_references(
    items: str | Sequence[Json], earlier: CallersRuns, memory: ExitStack
) -> References:
    """Return the messages of each item that `items` refers to, by id. Reasoning items have none. Raise TooLarge
    as soon as too much is loaded.
    """
    if isinstance(items, str):
        return {}
    by_response = dict[str, list[str]]()
    for id in {str(item.get("id")) for item in items if item.get("type") == "item_reference"}:
        if not id.startswith("rs_") and (response := response_of(id)):
            by_response.setdefault(response, []).append(id)
    if len(by_response) > MOST_RESPONSES:
        raise BadTask(
            f"input: a request may refer to items of at most {MOST_RESPONSES} responses, not {len(by_response)}. "
            "Send the items themselves, or previous_response_id.",
            param="input",
        )
    messages, most, n_bytes = dict[str, Sequence[Message]](), earlier.limits.max_body_bytes, 0
    for response, ids in by_response.items():
        records = await find_response(response, earlier)
        if records is None:
            continue
        n_bytes += bytes_of_record(records.record)
        if n_bytes > most:
            message = f"input: the responses that it refers to have more than {most} bytes together (limits.max_body_bytes). Send the items themselves."
            raise TooLarge(message, param="input")
        item_messages = await _find_items(records, ids, earlier)
        messages |= item_messages
        _check_text(chain.from_iterable(messages.values()), earlier)
        memory.enter_context(earlier.memory(bytes_of(chain.from_iterable(item_messages.values()))))
        await asyncio.sleep(0)  # lookups of records in memory do not yield to other tasks
    return messages


async def _find_items(records: RunRecords, ids: Sequence[str], earlier: CallersRuns) -> References:
    """Return the messages of the items of one response, by id. Missing items are omitted."""
    call_id = await earlier.call_id(records.record.id)
    response_items = (*input_items(records, call_id), *show_again(records, call_id)["output"])
    items, messages = {item["id"]: item for item in response_items}, dict[str, Sequence[Message]]()
    for id in ids:
        if id in items:
            transcript = Transcript()
            transcript.add([items[id]], lambda _item, _at: ())
            messages[id] = transcript.messages
    return messages


def show_again(records: RunRecords, call_id: CallId) -> Json:
    request = request_of(records)
    return show(records, request.echo, request.tools, request.podium, call_id)


def request_of(records: RunRecords, after: int = -1) -> ApiRequest:
    """Rebuild a run's request with the echo from its record. For `after`, see `ResponseWriter`."""
    task = records.record.task
    newest = echo_of_newest(records.record)
    podium, echo = Podium(progress=newest["progress"]), {**newest, "after": after}
    return ApiRequest(
        task.model, task.conversation, task.sampling, None, podium, True, True, task.tools, echo=echo
    )


def input_items(records: RunRecords, call_id: CallId) -> list[Json]:
    """Return the input items of the newest response of a run, oldest first."""
    record, part = records.record, part_of(records.record)
    messages = own_conversation(record)[record.task.echo["n_earlier"] :]
    if part:
        client_reply = record.segments[part - 1].given
        messages = input_messages(client_reply, call_id) if client_reply else ()
    kinds = {
        pending.number: pending.call.kind for pending in record.calls_of_tools(range(record.n_tool_calls))
    }
    custom = {call_id(number) for number, kind in kinds.items() if kind == "custom"}
    items: list[Json] = []
    for message in messages:
        items += items_of(message, len(items), record.id, part, custom)
    return items


def _find_referenced(references: References, id: str, at: str) -> Sequence[Message]:
    """Return the messages of a referenced item. Raise BadTask if it is missing, and not reasoning."""
    messages = references.get(id, ())
    if not messages and not id.startswith("rs_"):
        raise BadTask(f"{at}.id: item {quote(id)} not found.", param=f"{at}.id")
    return messages
