"""`/v1/workflows`: records of runs, their events, and cancellation."""

import time
from collections.abc import AsyncGenerator
from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from conductor.errors import BadTask, quote
from conductor.run.record import Record, RunRecords, RunStatus
from serving.accounts.caller import Caller
from serving.accounts.directory import Directory
from serving.api import record_json
from serving.api.authentication import caller_of, is_still_accepted
from serving.api.feed import Feeds
from serving.api.feedback import feedback_json, no_run
from serving.api.record_json import call_of_tool, dumps
from serving.api.respond import success, success_list
from serving.redaction.slices import READS, turn
from serving.sessions.service import Service
from serving.store.run_filter import RunFilter
from serving.store.store import RunInfo
from serving.store.tool_ids import CallName

router = APIRouter()
MOST_USD = 9_000_000
NO_NUL = r"^[^\x00]+$"
"""PostgreSQL does not store NUL characters in text."""
HEARTBEAT = b": still there\n\n"


@router.get("/v1/workflows")
async def workflows(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    after: Annotated[
        str | None, Query(description="Id of a run. Only runs that started before it are listed.")
    ] = None,
    worker: Annotated[
        str | None, Query(pattern=NO_NUL, description="Name of a worker that the run called.")
    ] = None,
    model: Annotated[str | None, Query(pattern=NO_NUL, description="Model of the request.")] = None,
    status: Annotated[RunStatus | None, Query(description="Current status of the run.")] = None,
    min_cost_usd: Annotated[
        Decimal | None, Query(ge=0, le=MOST_USD, description="Minimum cost of the run, in dollars.")
    ] = None,
    max_cost_usd: Annotated[
        Decimal | None, Query(ge=0, le=MOST_USD, description="Maximum cost of the run, in dollars.")
    ] = None,
    rated: Annotated[bool, Query(description="Only runs with feedback.")] = False,
    team: Annotated[
        str | None,
        Query(
            pattern=NO_NUL,
            description="Id of the team that started the run. An administrator may also use its name.",
        ),
    ] = None,
    words: Annotated[
        str | None,
        Query(
            min_length=3,
            max_length=200,
            pattern=NO_NUL,
            description="Text that the question or the answer contains. Case does not matter.",
        ),
    ] = None,
    conversation: Annotated[
        str | None,
        Query(pattern=NO_NUL, description="Id of a conversation, from the field `conversation` of a run."),
    ] = None,
) -> Response:
    """List the newest runs of the caller's team, including those that are still running.

    The list contains the beginning of the newest question in `messages`, unless the run is running on another
    replica. Of all other texts it contains only the lengths; `GET /v1/workflows/{id}` returns the texts. If
    `has_more` is true, pass `next_after` as `after` to read the next page. A page may have a next page even if it has fewer
    runs than `limit`, because one request searches for at most about 0.3 s.
    """
    service: Service = request.app.state.service
    caller = caller_of(request)
    directory: Directory | None = request.app.state.directory
    if team is not None and directory is not None and caller.sees_every_run:
        team = (await directory.team(team)).id
    run_filter = RunFilter(
        worker, min_cost_usd, max_cost_usd, words, model, status, rated, team, conversation
    )
    page = await service.newest(limit, caller, after, run_filter)
    following = {"has_more": page.end is not None, "next_after": page.end[1] if page.end else None}
    return await success_list(page.runs, lambda run: _workflow_json(run, caller), following)


@router.get("/v1/workflows/{id}")
async def workflow(request: Request, id: str) -> Response:
    """Return one run, finished or running, on any replica. A run of another team is reported as not found."""
    caller = caller_of(request)
    run = await _find(request, id, caller)
    service: Service = request.app.state.service
    feedback = [feedback_json(each) for each in await service.store.feedback(id)]
    details = await _waits_for(run, service) | {"feedback": feedback} | _now(run.record)
    async with turn(READS):
        return success(_workflow_json(run, caller) | details)


@router.post("/v1/workflows/{id}/cancel")
async def cancel(request: Request, id: str) -> Response:
    """Cancel a run, on whichever replica it is running. Open calls are closed, and their tokens so far are
    billed.

    A run on another replica ends within a second. The response is the current record of the run. A key that
    did not start the run and may not read it receives only the `status`, which says whether the run has ended.
    """
    service: Service = request.app.state.service
    caller = caller_of(request)
    await _find_info(request, id, caller)
    await service.sessions.cancel(id)
    info = await _find_info(request, id, caller)
    if not caller.reads(info.account):
        return success({"id": id, "object": "workflow", "status": info.status})
    run = await _find(request, id, caller)
    async with turn(READS):
        return success(_workflow_json(run, caller))


@router.get("/v1/workflows/{id}/events")
async def events(
    request: Request,
    id: str,
    last_event_id: Annotated[str | None, Header()] = None,
    after: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """Stream the events of a run as server-sent events until the run ends. The stream starts at the first
    event, or after `Last-Event-ID`.

    Every replica can serve the stream. From the moment at which a client first watches the run, the answer
    arrives in pieces as it is written; the first piece has all earlier text. For a run that continues without
    its client, all pieces are stored and sent.

    The stream ends early if the key is no longer accepted, or if the clients of the key leave too many bytes
    unread. A new request then returns the error.
    """
    service: Service = request.app.state.service
    caller = caller_of(request)
    if last_event_id is not None:
        if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 18):
            raise BadTask(f"Last-Event-ID must be the id of an event, not {quote(last_event_id)}.", param="Last-Event-ID")  # fmt: skip
        after = int(last_event_id)
    await _find_info(request, id, caller)
    await service.store.watch(id)
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(_follow(request, service, id, caller, after), 200, headers, "text/event-stream")  # fmt: skip


async def _follow(
    request: Request, service: Service, id: str, caller: Caller, after: int
) -> AsyncGenerator[bytes]:
    feeds: Feeds = request.app.state.feeds
    heartbeat_s = service.settings().limits.heartbeat_s
    async with feeds.watch(id, caller.account, after) as watch:
        while not watch.is_over:
            has_news = await watch.wait(heartbeat_s)
            if not await is_still_accepted(request):
                return
            if not has_news:
                yield HEARTBEAT
                continue
            frames = watch.take()
            if frames is None:
                return
            if frames:
                yield frames
    info = await service.info(id, caller)
    status = info.status if info else "removed"
    yield b"event: end\n" + b"data: " + dumps({"type": "end", "status": status}) + b"\n\n"


def _workflow_json(run: RunRecords, caller: Caller) -> record_json.Json:
    return record_json.workflow(
        run.record, run.inner, for_operator=caller.sees_every_run, has_content=run.has_content
    )


def _now(record: Record) -> record_json.Json:
    """Return the seconds of an open run by this machine's clock, without its waits."""
    if record.status != "running":
        return {}
    waited_s = sum(segment.waited_s for segment in record.segments)
    return {"now_s": record_json.seconds(max(record.wall_s, time.time() - record.created - waited_s))}


async def _waits_for(run: RunRecords, service: Service) -> record_json.Json:
    """Return the tool calls that a run waits for, with ids. A background run has sent them to no client."""
    record = run.record
    if record.status != "waiting" or not run.has_content:
        return {}
    ids = await service.store.call_ids()
    calls = [
        {"id": ids.sign(CallName(record.id, each.number)), **call_of_tool(each)} for each in record.pending
    ]
    return {"waits_for": calls}


async def _find(request: Request, id: str, caller: Caller) -> RunRecords:
    """Return a run. Raise UnknownName if `caller` may not see it."""
    service: Service = request.app.state.service
    run = await service.records(id, caller)
    if run is None:
        raise no_run(id)
    return run


async def _find_info(request: Request, id: str, caller: Caller) -> RunInfo:
    """Return facts about a run without loading its texts. Raise UnknownName if `caller` may not see it."""
    service: Service = request.app.state.service
    info = await service.info(id, caller)
    if info is None:
        raise no_run(id)
    return info
