"""`/v1/workflows`: the records of runs, what happens in them, and their end."""

import time
from collections.abc import AsyncGenerator
from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from conductor.errors import BadTask, UnknownName, quote
from conductor.run.record import Record, RunRecords, RunStatus
from serving.accounts.caller import Caller
from serving.accounts.directory import Directory
from serving.api import record_json
from serving.api.authentication import caller_of, is_still_let_in
from serving.api.encode import dumps
from serving.api.feed import Feeds
from serving.api.feedback import feedback_json
from serving.api.record_json import call_of_tool
from serving.api.respond import success, success_list
from serving.redaction.slices import READS, turn
from serving.runs.run_filter import RunFilter
from serving.runs.tool_ids import CallName
from serving.sessions.service import Service

router = APIRouter()
MOST_USD = 9_000_000
NO_NUL = r"^[^\x00]+$"
"""PostgreSQL's texts have none."""
HEARTBEAT = b": still there\n\n"


@router.get("/v1/workflows")
async def workflows(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    after: Annotated[str | None, Query(description="The id of a run: those that began before it.")] = None,
    worker: Annotated[str | None, Query(pattern=NO_NUL, description="It was called in the run.")] = None,
    model: Annotated[str | None, Query(pattern=NO_NUL, description="It was asked for.")] = None,
    status: Annotated[RunStatus | None, Query(description="The run has it now.")] = None,
    min_cost_usd: Annotated[Decimal | None, Query(ge=0, le=MOST_USD)] = None,
    max_cost_usd: Annotated[Decimal | None, Query(ge=0, le=MOST_USD)] = None,
    rated: Annotated[bool, Query(description="Only those of which somebody has said something.")] = False,
    team: Annotated[
        str | None,
        Query(
            pattern=NO_NUL,
            description="Its id, for an administrator's key also its name: its keys asked for the run.",
        ),
    ] = None,
    words: Annotated[
        str | None,
        Query(
            min_length=3,
            max_length=200,
            pattern=NO_NUL,
            description="They are in the question or the answer.",
        ),
    ] = None,
) -> Response:
    """The newest runs that the caller's team asked for, also those under way. A list has no texts, only how
    long they are; they are in each run's own record. Where `has_more` is true, `next_after` is the `after` of the next page;
    a page that is not full may have one: for filters that few runs match, one request looks back for about 0.3 s.
    """
    service: Service = request.app.state.service
    caller = caller_of(request)
    directory: Directory | None = request.app.state.directory
    if team is not None and directory is not None and caller.sees_every_run:
        team = (await directory.team(team)).id
    run_filter = RunFilter(worker, min_cost_usd, max_cost_usd, words, model, status, rated, team)
    page = await service.newest(limit, caller, after, run_filter)
    following = {"has_more": page.end is not None, "next_after": page.end[1] if page.end else None}
    return await success_list(page.runs, lambda run: _shown(run, caller), following)


@router.get("/v1/workflows/{id}")
async def workflow(request: Request, id: str) -> Response:
    """One run, also while it goes on, here or on another replica. Another team's is as one that is not there."""
    caller = caller_of(request)
    run = await _find(request, id, caller)
    service: Service = request.app.state.service
    feedback = [feedback_json(each) for each in await service.store.feedback(id)]
    said = await _waits_for(run, service) | {"feedback": feedback} | _now(run.record)
    async with turn(READS):
        return success(_shown(run, caller) | said)


@router.post("/v1/workflows/{id}/cancel")
async def cancel(request: Request, id: str) -> Response:
    """End a run, on whichever replica it is under way; what was begun is closed, and paid as far as it came.
    Within a second on another replica. The record as it is now is the answer. A key that may not read, and did not ask
    for the run, gets only the `status`, which says whether it has ended already.
    """
    service: Service = request.app.state.service
    caller = caller_of(request)
    await _find(request, id, caller)
    await service.sessions.cancel(id)
    run = await _find(request, id, caller)
    if not caller.reads(run.record.account):
        return success({"id": id, "object": "workflow", "status": run.record.status})
    return success(_shown(run, caller))


@router.get("/v1/workflows/{id}/events")
async def events(
    request: Request,
    id: str,
    last_event_id: Annotated[str | None, Header()] = None,
    after: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """What happens in a run, as server-sent events, from its beginning or from the event after
    `Last-Event-ID`; until it ends. Any replica can be asked. Pieces of the answer are among them from when somebody
    asks, the first with all that was said by then; of runs that outlive their client, all of them. It breaks off where
    the key is let in no longer, or has too many bytes of unread answers: who asks again is told why.
    """
    service: Service = request.app.state.service
    caller = caller_of(request)
    if last_event_id is not None:
        if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 18):
            raise BadTask(f"Last-Event-ID: {quote(last_event_id)} is not the id of an event.", param="Last-Event-ID")  # fmt: skip
        after = int(last_event_id)
    await _find(request, id, caller)
    await service.store.watch(id)
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(_follow(request, service, id, caller, after), 200, headers, "text/event-stream")  # fmt: skip


async def _follow(
    request: Request, service: Service, id: str, caller: Caller, after: int
) -> AsyncGenerator[bytes]:
    feeds: Feeds = request.app.state.feeds
    heartbeat_s = service.pool.settings.limits.heartbeat_s
    async with feeds.watch(id, caller.account, after) as watch:
        while not watch.is_over:
            has_news = await watch.wait(heartbeat_s)
            if not await is_still_let_in(request):
                return
            if not has_news:
                yield HEARTBEAT
                continue
            written = watch.take()
            if written is None:
                return
            if written:
                yield written
    records = await service.records(id, caller)
    status = records.record.status if records else "removed"
    yield b"event: end\n" + b"data: " + dumps({"type": "end", "status": status}) + b"\n\n"


def _shown(run: RunRecords, caller: Caller) -> record_json.Json:
    return record_json.workflow(
        run.record, run.inner, for_operator=caller.sees_every_run, has_content=run.has_content
    )


def _now(record: Record) -> record_json.Json:
    """How long a run goes on already, by this machine's clock, without the time that it waited for its client."""
    if record.status != "running":
        return {}
    waited_s = sum(segment.waited_s for segment in record.segments)
    return {"now_s": record_json.seconds(max(record.wall_s, time.time() - record.created - waited_s))}


async def _waits_for(run: RunRecords, service: Service) -> record_json.Json:
    """The calls of tools that a run waits for, with the ids that their results are sent under: a run in the background
    told them to nobody.
    """
    record = run.record
    if record.status != "waiting" or not run.has_content:
        return {}
    ids = await service.store.call_ids()
    calls = [
        {"id": ids.sign(CallName(record.id, each.number)), **call_of_tool(each)} for each in record.pending
    ]
    return {"waits_for": calls}


async def _find(request: Request, id: str, caller: Caller) -> RunRecords:
    """The run of that id.

    Raises:
        UnknownName: there is none, or it is not for `caller` to see.
        StoreUnavailable: the store is away.
    """
    service: Service = request.app.state.service
    run = await service.records(id, caller)
    if run is None:
        raise UnknownName(f"No run {quote(id)} is kept here; the newest are at /v1/workflows.", param="id")
    return run
