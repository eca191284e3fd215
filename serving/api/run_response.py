"""The response that owns a run.

The response is a coroutine that holds the run's scope. When the client disconnects, the coroutine leaves the
scope, which closes every task, call and cost reservation. A generator in a `StreamingResponse` would not
work: under ASGI 2.3, it is not closed when the client disconnects.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from conductor.errors import PodiumError
from conductor.model.failure import Failure
from conductor.run.events import AnswerDelta, Event, RunCancelled, RunDetached, RunFailed, Terminal
from conductor.run.record import RunRecords
from conductor.run.run import Run
from conductor.run.task import Task
from serving import errors
from serving.accounts.caller import Caller
from serving.api.choices import Siblings
from serving.api.conversation import find_history
from serving.api.dialect import CallId, Dialect, Encoder, failure_of
from serving.api.error_json import caller_failure
from serving.api.record_json import dumps
from serving.api.request import ApiRequest
from serving.api.resolve import ResolvedTask, find_fetchers, resolve
from serving.api.run_opener import Keeping, RunOpener
from serving.api.tool_results import ToolAnswer, attach, find_tool_answer
from serving.edge.exchange import body_lease, notify_on_drop
from serving.pool import Pool
from serving.sessions.deduplication import has_called
from serving.sessions.following import retell
from serving.sessions.service import Service
from serving.store.tool_ids import CallIds, CallName

Json = dict[str, Any]
CACHE_HEADER = "x-podium-cache"
WORKFLOW_HEADER = "x-podium-workflow-id"
SHOWN = AnswerDelta | Terminal
"""Events that show the client a part of the answer, or end it."""
ENDED_BADLY = RunFailed | RunCancelled | RunDetached
"""Events that end a run without a complete answer."""


class Wire:
    """Sends a response over ASGI, and keeps track of what was sent."""

    def __init__(
        self,
        send: Send,
        dialect: Dialect,
        siblings: Siblings | None = None,
        budget: Callable[[], Awaitable[dict[str, str]]] | None = None,
    ) -> None:
        self._send, self._dialect, self._siblings = send, dialect, siblings
        self._budget = budget
        """Function that returns the headers with the caller's remaining budget."""
        self.run: Run | None = None
        """The run, once there is one. Its id is in the headers and in errors."""
        self.extra: dict[str, str] = {}
        """Additional headers."""
        self.is_cached = False
        """True if the answer comes from the cache. A header says so."""
        self.is_joined = True
        """True if a retry of the request joins the run."""
        self.has_begun = self.is_whole = False
        """True once the first or the last byte was sent."""
        self.sent_s = 0.0
        """Time of the last byte of the stream, or of its start (the loop's clock)."""

    def leave(self) -> None:
        """Stop sending: the client has disconnected."""
        self._send = _send_nothing

    async def json(self, status: int, body: Json, extra: dict[str, str] | None = None) -> None:
        content = dumps(body)
        await self._start(
            status, {"content-type": "application/json", "content-length": str(len(content)), **(extra or {})}
        )
        await self._send_last(content)

    @property
    def workflow_id(self) -> str | None:
        return self.run.record.id if self.run else None

    async def error(self, error: PodiumError) -> None:
        """Send an error before the first byte. A header prevents retries if a model was called or the error
        is final.
        """
        was_paid = self.run is not None and has_called(self.run.record)
        was_paid = was_paid or (self._siblings is not None and self._siblings.have_called)
        status = self._dialect.status(error, is_paid=was_paid, is_joined=self.is_joined)
        headers = errors.headers(error)
        is_final = status != errors.row(error).status and status == errors.FINAL
        if is_final or was_paid:  # a retry would be billed again, or fail in the same way
            headers["x-should-retry"] = "false"
        failure = caller_failure(error, self.run.record) if self.run else error
        await self.json(status, self._dialect.error_body(failure, self.workflow_id), headers)

    async def begin_stream(self) -> None:
        """Send the headers of a stream of server-sent events."""
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
        }
        await self._start(200, headers)
        self.sent_s = asyncio.get_running_loop().time()

    async def send(self, data: bytes) -> None:
        """Send a piece of the stream, unless it is empty."""
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            self.sent_s = asyncio.get_running_loop().time()

    @contextmanager
    def beats(self, every_s: float, beat: Callable[[], None]) -> Generator[None]:
        """Call `beat` whenever nothing was sent for `every_s` seconds, until the end of the block. One timer
        serves the whole stream: a new one for each event would cost more than the event.
        """
        loop = asyncio.get_running_loop()

        def look() -> None:
            nonlocal timer
            due_s = self.sent_s + every_s
            if loop.time() >= due_s:
                beat()
                due_s = loop.time() + every_s
            timer = loop.call_at(due_s, look)

        timer = loop.call_at(self.sent_s + every_s, look)
        try:
            yield
        finally:
            timer.cancel()

    def is_silent(self, for_s: float) -> bool:
        """Return whether nothing was sent for `for_s` seconds."""
        return asyncio.get_running_loop().time() >= self.sent_s + for_s

    async def end(self) -> None:
        await self._send_last(b"")

    async def _send_last(self, content: bytes) -> None:
        self.is_whole = True
        await self._send({"type": "http.response.body", "body": content})

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        self.has_begun = True
        headers = self.extra | (await self._budget() if self._budget else {}) | headers
        if self.workflow_id:
            headers = {WORKFLOW_HEADER: self.workflow_id, **headers}
        if self.is_cached:
            headers = {CACHE_HEADER: "hit", **headers}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})


async def _send_nothing(message: Message) -> None:
    pass


class RunResponse:
    """Response that runs a request while its client is connected, as JSON or as server-sent events.

    A failure before the first byte becomes an HTTP status. A later failure becomes the last event of the
    stream.
    """

    plan_only = False

    def __init__(
        self,
        service: Service,
        dialect: Dialect,
        request: ApiRequest,
        headers: dict[str, str],
        caller: Caller,
        keeping: Keeping | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        self._service, self._dialect, self._caller = service, dialect, caller
        self._request, self._incoming = request, headers
        self._id = f"wf_{uuid.uuid4().hex}"
        self._call_ids: CallIds | None = None
        self._siblings = siblings
        self._opener = RunOpener(service, request, headers, caller, self._id, keeping, siblings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request (ASGI). If the client disconnects, return when everything is closed. A run that
        a retry can join continues without it.
        """
        notify_on_drop(scope, self._note_why)
        self._opener.body_lease = body_lease(scope)
        account = self._caller.account
        wire = Wire(send, self._dialect, self._siblings, lambda: self._service.budget_headers(account))
        answering = asyncio.create_task(self._answer(wire))
        leaving = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            run = self._opener.joinable
            lingers = (
                run is not None and not answering.done() and self._service.sessions.linger(run, answering)
            )
            if lingers:
                wire.leave()
            else:
                if (
                    not wire.is_whole
                ):  # else it only closes what it used, and Uvicorn reports a client that left
                    answering.cancel()
                await asyncio.wait({answering, leaving})
        if not (lingers or answering.cancelled()):
            answering.result()

    def _note_why(self, error: PodiumError) -> None:
        """Record in the run why its client was disconnected."""
        if self._opener.own is not None:
            self._opener.own.why_left = Failure.of(error)

    async def _answer(self, wire: Wire) -> None:
        try:
            await self._admit(wire)
            if self._request.has_tool_results and not self.plan_only:
                answer = await find_tool_answer(self._request, self._dialect, self._service)
                if answer is not None and await self._resume(answer, wire):
                    return
            async with self._service.use_pool() as pool:
                resolved = await self._resolve(pool)
                async with self._opener.open(resolved, may_join=self._may_join(resolved.task)) as run:
                    await self._show(run, resolved, wire)
        except PodiumError as exc:
            if wire.has_begun:
                raise
            wire.is_joined = self._opener.is_joined
            await wire.error(exc)
        finally:
            if not (self._opener.is_left or self._opener.rate.is_owned):  # otherwise the run settles it
                await self._service.sessions.admission.rates.settle(self._opener.rate, None)

    async def _resolve(self, pool: Pool) -> ResolvedTask:
        fetchers = await find_fetchers(self._request, pool)
        history = await find_history(self._request, self._service, self._caller)
        resolved = resolve(
            self._request,
            pool,
            self._caller.policies,
            plan_only=self.plan_only,
            fetchers=fetchers,
            prompt_tokens=history.prompt_tokens(self._request),
        )
        return history.apply(resolved, self._request)

    def _may_join(self, task: Task) -> bool:
        """Return whether a retry of this request may join its run after a failure or a cut-off answer."""
        is_alone = self._siblings is None and not self.plan_only  # siblings would all join the same run
        return is_alone and task.operation == "chat" and (self._dialect.joins or bool(task.tools))

    async def _resume(self, answer: ToolAnswer, wire: Wire) -> bool:
        """Answer with the waiting run of `answer`. Return False if that run is no longer waiting."""
        async with attach(self._service, answer, self._caller, self._incoming, self._opener.rate) as run:
            if run is None:
                return False
            await self._show(run, None, wire)
            return True

    async def _show(self, run: Run, resolved: ResolvedTask | None, wire: Wire) -> None:
        wire.run, wire.is_cached = run, bool(run.record.cached_from)
        if self._siblings is not None:
            self._siblings.runs.append(run)
        self._call_ids = await self._service.store.call_ids() if run.record.may_call_tools else None
        if self._request.podium.background and not self._request.stream:
            await wire.json(*self._dialect.background_response(run.records, self._request))
        elif self._request.stream and not self.plan_only:
            if self._dialect.tells_again and self._request.podium.background:
                await self._stream_from_store(run, wire)
            else:
                await self._stream(run, wire)
        else:
            await self._send_json(run, resolved, wire)

    def _call_id(self, run_id: str) -> CallId:
        """Return a function that turns the number of a tool call into the signed id that the client sees."""
        ids = self._call_ids

        def sign(number: int) -> str:
            assert ids is not None, "a run that calls tools has call ids"
            return ids.sign(CallName(run_id, number))

        return sign

    async def _admit(self, wire: Wire) -> None:
        """Count the request against the caller's rate limits, or raise RateLimited."""
        if not self._caller.policies.limits_rates:
            return
        rates, tokens = self._service.sessions.admission.rates, self._request.token_estimate
        rate = self._opener.rate = await rates.reserve(self._caller.account, self._caller.policies, tokens)
        wire.extra = rate.headers
        if rate.refusal is not None:
            raise rate.refusal

    async def _send_json(self, run: Run, resolved: ResolvedTask | None, wire: Wire) -> None:
        run.answer.skip_pieces()  # the record contains the whole answer
        is_over = False
        while not is_over:
            newest = (await run.answer.next_all())[-1]
            _check_ended_well(newest)
            is_over = isinstance(newest, Terminal)
        await self._service.end_turn(run.records)
        await wire.json(200, self.content(run.records, resolved))

    def content(self, records: RunRecords, resolved: ResolvedTask | None) -> Json:
        """Return the JSON body for a client that does not stream."""
        return self._dialect.body(records, self._request, self._call_id(records.record.id))

    async def _stream(self, run: Run, wire: Wire) -> None:
        limits = self._service.settings().limits
        early = await _first_events(run, limits.first_byte_s)
        encoder = self._dialect.encoder(run, self._request, self._call_id(run.record.id))
        await self._service.store.wait_while_late(run.record.id)
        await wire.begin_stream()
        is_over = bool(early) and isinstance(early[-1], Terminal)
        if is_over:
            await self._service.end_turn(run.records)
        await wire.send(encoder.begin() + b"".join(map(encoder.encode, early)))
        if is_over:
            return await wire.end()
        return await self._stream_rest(run, encoder, wire)

    async def _stream_from_store(self, run: Run, wire: Wire) -> None:
        """Stream the stored events, so that every reader receives the same events, now and later."""
        run.answer.close()
        n_given = sum(segment.given is not None for segment in run.record.segments)
        async with retell(self._service.store, run.record.id, n_given) as replay:
            await self._stream(replay, wire)

    async def _stream_rest(self, run: Run, encoder: Encoder, wire: Wire) -> None:
        heartbeat_s = self._service.settings().limits.heartbeat_s
        with wire.beats(heartbeat_s, run.answer.wake):
            while True:
                events = await run.answer.next_all()
                if not await self._may_continue():
                    return await wire.end()
                await self._service.store.wait_while_late(run.record.id)
                if is_over := bool(events) and isinstance(events[-1], Terminal):
                    await self._service.end_turn(run.records)
                data = b"".join(map(encoder.encode, events))  # one send for all
                if not data and wire.is_silent(heartbeat_s):  # many events send nothing
                    data = encoder.heartbeat()
                await wire.send(data)
                if is_over:
                    return await wire.end()

    async def _may_continue(self) -> bool:
        """Return whether the stream may go on. The client that started a run always receives all of it."""
        return True


async def _first_events(run: Run, first_byte_s: float) -> list[Event]:
    """Return the events up to the answer's first part or end, or for `first_byte_s` seconds from the first
    event, when the store has a record. A failure is raised to become an HTTP status.
    """
    events = [await run.answer.next()]
    with suppress(TimeoutError):
        async with asyncio.timeout(first_byte_s):
            while not isinstance(events[-1], SHOWN):
                events.append(await run.answer.next())
    _check_ended_well(events[-1])
    return events


def _check_ended_well(event: Event) -> None:
    """Raise the error that `event` reports, if any."""
    if isinstance(event, ENDED_BADLY):
        failure = failure_of(event)
        raise failure.to_error() if isinstance(failure, Failure) else failure


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
