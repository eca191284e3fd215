"""The response that owns a run.

It is a coroutine that holds the run's scope, not a generator body: when the client leaves, the scope is left, and with it every
task, call and held cent. (A generator inside a `StreamingResponse` is not closed when the client goes under ASGI 2.3.)
"""

import asyncio
import time
import uuid
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from conductor.errors import PodiumError
from conductor.run.events import (
    AnswerDelta,
    CallQueued,
    Event,
    PlanEnded,
    RunFailed,
    RunFinished,
    StepAborted,
    StepFinished,
    StepFirstToken,
    StepPlanned,
    Terminal,
)
from conductor.run.record import RunRecords
from conductor.run.run import Run
from serving import errors
from serving.api import record_json
from serving.api.dialects.chat_schema import ChatRequest
from serving.api.encode import dumps
from serving.api.resolve import ResolvedTask, resolve
from serving.runs.service import Service

Json = dict[str, Any]
WORKFLOW_HEADER = "x-podium-workflow-id"
HEARTBEAT = b": still working\n\n"
DONE = b"data: [DONE]\n\n"


class RunResponse(Response):
    """Runs an order while the client stays, and tells it as JSON or as server-sent events.

    A failure before the first byte is a proper HTTP status; one after it is the last event of the stream.
    """

    plan_only = False

    def __init__(self, service: Service, request: ChatRequest, headers: dict[str, str]) -> None:
        super().__init__()
        self._service, self._request, self._incoming = service, request, headers
        self._id = f"wf_{uuid.uuid4().hex}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. Returns once the answer is out, or the client has gone and everything is closed."""
        answering = asyncio.create_task(self._answer(send))
        leaving = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.wait({answering, leaving})
        if not answering.cancelled():
            answering.result()

    async def _answer(self, send: Send) -> None:
        wire = _Wire(send)
        try:
            # In one turn of the loop, so that no `user_config` replaces the pool between order and run.
            ordered = resolve(self._request, self._service.pool, plan_only=self.plan_only)
            async with self._service.run(ordered.task, ordered.team, self._id, self._incoming) as run:
                wire.workflow_id = self._id
                if self._request.stream and not self.plan_only:
                    await self._stream(run, wire)
                else:
                    await self._whole(run, ordered, wire)
        except PodiumError as exc:
            if wire.begun:
                raise
            await wire.error(exc)

    async def _whole(self, run: Run, ordered: ResolvedTask, wire: "_Wire") -> None:
        async for event in run.events():
            if isinstance(event, RunFailed):
                raise event.failure.to_error()
        await wire.json(200, self.content(run.records, ordered))

    def content(self, records: RunRecords, ordered: ResolvedTask) -> Json:
        """What a client gets that does not stream."""
        return record_json.completion(records.record, records.inner, trace=self._request.podium.trace)

    async def _stream(self, run: Run, wire: "_Wire") -> None:
        limits = self._service.pool.settings.limits
        early = await _first_events(run, limits.first_byte_s)
        chunks = Chunks(run, self._request)
        await wire.begin_stream()
        await wire.send(chunks.role() + b"".join(map(chunks.of, early)))
        if early and isinstance(early[-1], Terminal):
            return await wire.end()
        while True:
            try:  # since the last byte, not since the last event: many events are told to nobody
                async with asyncio.timeout_at(wire.sent_s + limits.heartbeat_s):
                    events = await run.answer.next_all()
            except TimeoutError:
                await wire.send(HEARTBEAT)
                continue
            await wire.send(b"".join(map(chunks.of, events)))  # what came together leaves together
            if isinstance(events[-1], Terminal):
                return await wire.end()


async def _first_events(run: Run, first_byte_s: float) -> list[Event]:
    """Events until the first piece of the answer, the end, or `first_byte_s`.

    Raises:
        PodiumError: the run failed by then, so the failure can still be an HTTP status.
    """
    events: list[Event] = []
    try:
        async with asyncio.timeout(first_byte_s):
            while not events or not isinstance(events[-1], AnswerDelta | RunFinished):
                events.append(await run.answer.next())
                if isinstance(events[-1], RunFailed):
                    raise events[-1].failure.to_error()
    except TimeoutError:
        pass
    return events


async def _wait_for_disconnect(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Chunks:
    """Events as the bytes of `chat.completion.chunk`s. No pydantic here: a chunk is a few dictionaries."""

    def __init__(self, run: Run, request: ChatRequest) -> None:
        self._run, self._podium = run, request.podium
        self._answering = False
        self._with_usage = request.stream_options is not None and request.stream_options.include_usage
        record = run.record
        self._head: Json = {
            "id": record_json.chat_id(record.id), "object": "chat.completion.chunk", "created": int(time.time()),
            "model": record.model,
        }  # fmt: skip

    def role(self) -> bytes:
        """The first chunk: somebody answers."""
        return self._delta({"role": "assistant", "content": ""})

    def of(self, event: Event) -> bytes:
        """What `event` puts on the stream; nothing, for most."""
        match event:
            case StepFirstToken():  # by now it is known who answers
                self._head["model"] = record_json.model_name(self._run.record)
                return self._progress(event)
            case AnswerDelta(text=text, reasoning=reasoning):
                self._answering = True
                delta: Json = {"content": text} if text else {}
                return self._delta(delta | ({"reasoning_content": reasoning} if reasoning else {}))
            case RunFinished(finish=finish):
                return self._last_chunks(finish.value)
            case RunFailed(failure=failure):
                return _data(errors.body(failure, self._run.record.id)) + DONE
            case _:
                return self._progress(event)

    def _progress(self, event: Event) -> bytes:
        if self._podium.progress == "off" or (told := record_json.progress(event)) is None:
            return b""
        if self._podium.progress == "events":
            return self._chunk({"choices": [], "podium": told})
        line = "" if self._answering else in_words(event)
        return self._delta({"reasoning_content": line}) if line else b""

    def _last_chunks(self, reason: str) -> bytes:
        record = self._run.record
        last = self._chunk({
            "choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}],
            "podium": record_json.summary(record, self._run.records.inner, trace=self._podium.trace),
        })  # fmt: skip
        if not self._with_usage:
            return last + DONE
        return last + _data(self._head | {"choices": [], "usage": record_json.usage(record)}) + DONE

    def _delta(self, delta: Json) -> bytes:
        return self._chunk(
            {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]}
        )

    def _chunk(self, rest: Json) -> bytes:
        return _data(self._head | rest | ({"usage": None} if self._with_usage else {}))


def in_words(event: Event) -> str:
    """Progress as a line that a person reads; empty for what is not worth one."""
    match event:
        case StepPlanned(step=step, planned=planned):
            reads = (
                f" (reads {', '.join(str(read + 1) for read in planned.access)})" if planned.access else ""
            )
            return f"Step {step + 1}, {planned.worker}{reads}: {planned.subtask or 'answer the question'}\n"
        case PlanEnded(rejection=rejection, why=why) if rejection or why:
            return f"{why}\n"
        case CallQueued(worker=worker, why=why):
            return f"{worker}: {why}\n"
        case StepFinished(step=step):
            return f"Step {step + 1} is done.\n"
        case StepAborted(step=step, outcome=outcome):
            return f"Step {step + 1}: {outcome.value.replace('_', ' ')}.\n"
        case _:
            return ""


def _data(value: Json) -> bytes:
    return b"data: " + dumps(value) + b"\n\n"


class _Wire:
    """ASGI's sending side, and what was sent of it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.workflow_id: str | None = None
        """Told from the moment there is a run of that name."""
        self.begun = False
        self.sent_s = 0.0
        """When the newest byte of the stream was sent, by the loop's clock."""

    async def json(self, status: int, body: Json, extra: dict[str, str] | None = None) -> None:
        content = dumps(body)
        await self._start(
            status, {"content-type": "application/json", "content-length": str(len(content)), **(extra or {})}
        )
        await self._send({"type": "http.response.body", "body": content})

    async def error(self, error: PodiumError) -> None:
        await self.json(errors.row(error).status, errors.body(error, self.workflow_id), errors.headers(error))

    async def begin_stream(self) -> None:
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
        }
        await self._start(200, headers)

    async def send(self, data: bytes) -> None:
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            self.sent_s = asyncio.get_running_loop().time()

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, headers: dict[str, str]) -> None:
        self.begun = True
        if self.workflow_id:
            headers = {WORKFLOW_HEADER: self.workflow_id, **headers}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
