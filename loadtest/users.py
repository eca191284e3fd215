"""Users of a load test. They wait for an answer, read a stream, follow a plan, disconnect, or call one
worker.

Each request is one entry in Locust's table, under its kind. A stream adds entries of type `STREAM`, which are
times and not requests: `first progress`, `first token`, `between tokens` and `whole answer`. Those of an
ultra user start with `ultra`, and there are two more, by the server's clock: `ultra plan` and `ultra steps`.
Failures are grouped by kind: `http_<status> <code>`, `cut`, `timeout`, or the code of an error inside the
stream. Disconnecting is not a failure.

The module that starts Locust (`locustfile.py` or `closed_loop.py`) sets `environment.recording` and
`environment.request_options`.
"""

import json
import random
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import gevent
from geventhttpclient.response import HTTPConnectionClosed, HTTPParseError
from locust import FastHttpUser, between, tag, task

from loadtest.recording import LEFT, OK, Recording, Sample
from loadtest.request_options import CHAT, RequestOptions, failure, first_worker, parse_json, patience
from loadtest.sse import BrokenStreamError, SseReader, StreamResult

PATIENCE = random.Random()


class RequestFailed(Exception):
    """A failed request. Its text is only the kind, so that Locust counts kinds and not messages."""


class _User(FastHttpUser):
    abstract = True
    wait_time = between(0.5, 2.0)
    network_timeout = 120.0
    connection_timeout = 5.0

    def on_start(self) -> None:
        """Get the options and the recording of the run."""
        environment = cast(Any, self.environment)
        self.recording: Recording = environment.recording
        self.options: RequestOptions = environment.request_options

    @contextmanager
    def request(self, kind: str, **more: Any) -> Generator[tuple[Sample, Any]]:
        """Send a request. The block sets the outcome of the yielded sample."""
        gevent.sleep(0)  # Locust stops waiting users; a user that wakes at that moment stops here
        client: Any = self.client
        body = self.options.body(kind)
        with (
            self.recording.request(kind) as sample,
            client.post(CHAT, json=body, name=kind, catch_response=True, **more) as response,
        ):
            yield sample, response
            if sample.is_failure:
                response.failure(RequestFailed(sample.outcome))

    def ask(self, kind: str) -> None:
        """Send a request without streaming."""
        with self.request(kind) as (sample, response):
            if error := failure_of(response):
                sample.outcome = error
            else:
                sample.take_answer(parse_json(response.content or b""), self.recording.since_due_ms(sample))

    def stream_answer(self, kind: str, leaves_after: int | None = None) -> StreamResult | None:
        with self.request(kind, stream=True) as (sample, response):
            try:
                return self.read(response, sample, leaves_after)
            except BrokenStreamError as broken:
                sample.outcome = broken.kind
            except TimeoutError:
                sample.outcome = "timeout"
            except (OSError, HTTPConnectionClosed, HTTPParseError):
                sample.outcome = "cut"
        return None

    def read(self, response: Any, sample: Sample, leaves_after: int | None) -> StreamResult | None:
        """Read a stream to its end, or until the user disconnects."""
        if error := failure_of(response):
            sample.outcome = error
            return None
        reader = SseReader(self.recording.began + sample.due_s)
        for line in iter(lambda: response.stream.readline(b"\n"), b""):
            reader.take(line)
            if reader.events == leaves_after and not reader.is_done:
                response.stream.release()  # unread data makes the server notice the disconnect
                sample.outcome = LEFT
                return None
        result = reader.end()
        sample.take_stream(result)
        sample.outcome = OK
        return result

    def fire(self, name: str, milliseconds: float | None, length: int = 0) -> None:
        """Add an entry to Locust's table, unless the time is unknown."""
        if milliseconds is not None:
            times = {"response_time": milliseconds, "response_length": length}
            rest: dict[str, Any] = {"exception": None, "context": {}, "response": None}
            cast(Any, self.environment).events.request.fire(request_type="STREAM", name=name, **times, **rest)

    def report(self, result: StreamResult, prefix: str = "") -> None:
        """Add the times of one stream to Locust's table."""
        self.fire(f"{prefix}first progress", result.first_progress_ms)
        self.fire(f"{prefix}first token", result.first_token_ms)
        for gap_ms in result.token_gaps_ms:
            self.fire(f"{prefix}between tokens", gap_ms)
        self.fire(f"{prefix}whole answer", result.done_ms, len(result.text))


class ChatUser(_User):
    """User who waits for the complete answer."""

    weight = 1

    @tag("chat")
    @task
    def chat(self) -> None:
        """Ask a conductor one question."""
        self.ask("chat")


class StreamUser(_User):
    """User who reads and times the stream."""

    weight = 3

    @tag("stream")
    @task
    def stream(self) -> None:
        """Ask a conductor one question, streamed."""
        if result := self.stream_answer("stream"):
            self.report(result)


class UltraUser(_User):
    """User who follows the plan and the steps of the larger conductor."""

    weight = 2

    @tag("ultra")
    @task
    def ultra(self) -> None:
        """Ask `podium-ultra` one question, streamed with its progress."""
        if result := self.stream_answer("ultra"):
            self.fire("ultra plan", result.plan_ms)
            self.fire("ultra steps", result.steps_ms)
            self.report(result, "ultra ")


class CancellingUser(_User):
    """User who disconnects while the plan is written, steps run, or the answer streams."""

    weight = 1

    @tag("cancel")
    @task
    def cancel(self) -> None:
        """Ask a conductor one question, streamed, and disconnect before the end."""
        self.stream_answer("cancel", leaves_after=patience(PATIENCE))


class PassThroughUser(_User):
    """User who calls one worker by name, which measures Podium's overhead without orchestration."""

    weight = 1

    def on_start(self) -> None:
        """Find a worker to call, unless the options name one."""
        super().on_start()
        if not self.options.worker:
            self.options = replace(self.options, worker=self.find_worker())

    @tag("pass-through")
    @task
    def pass_through(self) -> None:
        """Ask one worker one question."""
        if self.options.worker:
            self.ask("pass-through")

    def find_worker(self) -> str:
        """Return the first worker that the server lists."""
        response: Any = self.client.get("/v1/models", name="models")
        return first_worker(json.loads(response.content or b"{}").get("data", []) if response.ok else [])


USERS: dict[str, type[_User]] = {
    "chat": ChatUser,
    "stream": StreamUser,
    "ultra": UltraUser,
    "cancel": CancellingUser,
    "pass-through": PassThroughUser,
}
"""User classes by the kinds in `request_options.py`."""


def failure_of(response: Any) -> str | None:
    """Return the kind of failure that the response reports, or None if there is an answer."""
    if response.status_code == 200:
        return None
    if response.status_code:
        return failure(response.status_code, response.content or b"")
    return "timeout" if isinstance(response.error, TimeoutError) else type(response.error).__name__
