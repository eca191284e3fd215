"""The kinds of users: they wait for the answer, read along, follow a plan, leave in mid-stream, or ask one worker by its name.

Each request is one entry in Locust's table under its kind. A stream adds entries of type `STREAM`, which are times a user
feels and no requests: `first progress`, `first token`, `between tokens` and `whole answer`; those of an ultra user begin with
`ultra` and have `ultra plan` and `ultra steps` too, by the server's clock. Failures are grouped by kind: `http_<status> <code>`,
`cut`, `timeout`, or the code of an error inside the stream. Leaving is none.

`environment.recording` and `environment.asking` are set by whoever starts Locust: `locustfile.py` or `closed_loop.py`.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import gevent
from geventhttpclient.response import HTTPConnectionClosed, HTTPParseError
from locust import FastHttpUser, between, tag, task
from locust.contrib.fasthttp import ResponseContextManager

from loadtest.asking import CHAT, Asking, failure, first_worker, patience
from loadtest.recording import LEFT, OK, Recording, Sample
from loadtest.sse import BrokenStreamError, Felt, Reader

PATIENCE = random.Random()


class Failure(Exception):
    """A failed request; its text is the kind alone, so that Locust counts kinds and not messages."""


class _User(FastHttpUser):
    """What all of them share."""

    abstract = True
    wait_time = between(0.5, 2.0)
    network_timeout = 120.0
    connection_timeout = 5.0

    def on_start(self) -> None:
        """Take over what the run is about."""
        environment = cast(Any, self.environment)
        self.recording: Recording = environment.recording
        self.asking: Asking = environment.asking

    def whole(self, kind: str) -> None:
        """Wait for the whole answer."""
        gevent.sleep(
            0
        )  # Locust stops those who wait; one that wakes just then is stopped here, before it asks
        body = self.asking.body(kind)
        with (
            self.recording.request(kind) as sample,
            self.client.post(CHAT, json=body, name=kind, catch_response=True) as response,
        ):
            refused = failure_of(response)
            if refused:
                sample.outcome = refused
            else:
                sample.answered(answer_of(response), self.recording.took_ms(sample))
            if sample.failed:
                response.failure(Failure(sample.outcome))

    def streamed(self, kind: str, leaves_after: int | None = None) -> Felt | None:
        """Read along; None where there was no whole answer."""
        gevent.sleep(0)  # as in `whole`
        seen = None
        with (
            self.recording.request(kind) as sample,
            self.client.post(
                CHAT, json=self.asking.body(kind), name=kind, stream=True, catch_response=True
            ) as response,
        ):
            try:
                seen = self.read(response, sample, leaves_after)
            except BrokenStreamError as broken:
                sample.outcome = broken.kind
            except TimeoutError:
                sample.outcome = "timeout"
            except (OSError, HTTPConnectionClosed, HTTPParseError):
                sample.outcome = "cut"
            if sample.failed:
                response.failure(Failure(sample.outcome))
        return seen

    def read(self, response: ResponseContextManager, sample: Sample, leaves_after: int | None) -> Felt | None:
        """Read a stream to its end, or so far as its user has patience."""
        refused = failure_of(response)
        if refused:
            sample.outcome = refused
            return None
        reader = Reader(self.recording.began + sample.due_s)
        for line in lines(response):
            reader.take(line)
            if reader.events == leaves_after and not reader.done:
                response.stream.release()  # unread, so the connection is closed: the server sees its client go
                sample.outcome = LEFT
                return None
        seen = reader.end()
        sample.heard(seen)
        sample.outcome = OK
        return seen

    def fire(self, name: str, milliseconds: float | None, length: int = 0) -> None:
        """An entry of its own in Locust's table, where it came to that."""
        if milliseconds is not None:
            self.environment.events.request.fire(
                request_type="STREAM", name=name, response_time=milliseconds, response_length=length, exception=None,
                context={}, response=None,
            )  # fmt: skip

    def report(self, seen: Felt, prefix: str = "") -> None:
        """What one stream felt like."""
        self.fire(f"{prefix}first progress", seen.first_progress_ms)
        self.fire(f"{prefix}first token", seen.first_token_ms)
        for gap_ms in seen.token_gaps_ms:
            self.fire(f"{prefix}between tokens", gap_ms)
        self.fire(f"{prefix}whole answer", seen.done_ms, len(seen.text))


class ChatUser(_User):
    """Waits for the whole answer."""

    weight = 1

    @tag("chat")
    @task
    def chat(self) -> None:
        """One question to a conductor."""
        self.whole("chat")


class StreamUser(_User):
    """Reads along, and counts what it has to wait for."""

    weight = 3

    @tag("stream")
    @task
    def stream(self) -> None:
        """One question to a conductor, streamed."""
        if seen := self.streamed("stream"):
            self.report(seen)


class UltraUser(_User):
    """Follows the plan and the steps of the larger conductor."""

    weight = 2

    @tag("ultra")
    @task
    def ultra(self) -> None:
        """One question to `podium-ultra`, streamed with its progress."""
        if seen := self.streamed("ultra"):
            self.fire("ultra plan", seen.plan_ms)
            self.fire("ultra steps", seen.steps_ms)
            self.report(seen, "ultra ")


class CancellingUser(_User):
    """Leaves in mid-stream: while the plan is written, while steps run, or while the answer is told."""

    weight = 1

    @tag("cancel")
    @task
    def cancel(self) -> None:
        """One question to a conductor, and away."""
        self.streamed("cancel", leaves_after=patience(PATIENCE))


class PassThroughUser(_User):
    """Asks one worker by its own name: what Podium costs where it does not orchestrate."""

    weight = 1

    def on_start(self) -> None:
        """Find a worker, unless one was named."""
        super().on_start()
        if not self.asking.worker:
            self.asking = replace(self.asking, worker=self.listed_worker())

    @tag("pass-through")
    @task
    def pass_through(self) -> None:
        """One question to one worker."""
        if self.asking.worker:
            self.whole("pass-through")

    def listed_worker(self) -> str:
        """The first worker that the server lists."""
        response = self.client.get("/v1/models", name="models")
        return first_worker(json.loads(response.content or b"{}").get("data", []) if response.ok else [])


USERS: dict[str, type[_User]] = {
    "chat": ChatUser,
    "stream": StreamUser,
    "ultra": UltraUser,
    "cancel": CancellingUser,
    "pass-through": PassThroughUser,
}
"""By the kind in `asking.py`."""


def lines(response: ResponseContextManager) -> Iterator[bytes]:
    """The lines of a streamed body, each as soon as it is there."""
    while line := response.stream.readline(b"\n"):
        yield line


def answer_of(response: ResponseContextManager) -> Any:
    """What a whole answer says; None where it is no JSON."""
    try:
        return json.loads(response.content or b"{}")
    except ValueError:
        return None


def failure_of(response: ResponseContextManager) -> str | None:
    """The kind of failure, or None where there is an answer."""
    if response.status_code == 200:
        return None
    if response.status_code:
        return failure(response.status_code, response.content or b"")
    return "timeout" if isinstance(response.error, TimeoutError) else type(response.error).__name__
