"""Three kinds of users: one waits for the answer, one reads along, one asks a worker by its own name.

Each request is one entry in Locust's table under its own name. A stream adds entries of type `STREAM`, which are times a
user feels and no requests: `first progress`, `first token`, `between tokens` and `whole answer`. Failures are grouped by
kind: `http_<status> <code>`, `cut`, `timeout`, or the code of an error inside the stream.
"""

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

from geventhttpclient.response import HTTPConnectionClosed, HTTPParseError
from locust import FastHttpUser, between, tag, task
from locust.contrib.fasthttp import ResponseContextManager

from loadtest.sse import BrokenStreamError, Felt, felt

CHAT = "/v1/chat/completions"
QUESTIONS = itertools.cycle([
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Name three differences between a list and a tuple in Python.",
    "A train goes 120 km in 80 minutes. How fast is it?",
    "Write a polite refusal of an invitation to dinner.",
])  # fmt: skip


class Failure(Exception):
    """A failed request; its text is the kind alone, so that Locust counts kinds and not messages."""


class _Asking(FastHttpUser):
    """What the three share."""

    abstract = True
    wait_time = between(0.5, 2.0)
    network_timeout = 120.0
    connection_timeout = 5.0

    @property
    def options(self) -> Any:
        """Command line: see `locustfile.py`."""
        return self.environment.parsed_options

    def body(self, model: str, **more: Any) -> dict[str, Any]:
        """A request that is bounded in length and time."""
        limits = {"deadline_s": self.options.deadline_s}
        message = {"role": "user", "content": next(QUESTIONS)}
        return {
            "model": model,
            "messages": [message],
            "max_tokens": self.options.answer_tokens,
            "podium": limits,
        } | more

    def ask(self, body: dict[str, Any], name: str) -> None:
        """Wait for the whole answer."""
        with self.client.post(CHAT, json=body, name=name, catch_response=True) as response:
            kind = failure_of(response)
            if kind is None and not answer_of(response):
                kind = "no_choice"
            if kind:
                response.failure(Failure(kind))

    def fire(self, name: str, milliseconds: float, length: int = 0) -> None:
        """An entry of its own in Locust's table."""
        self.environment.events.request.fire(
            request_type="STREAM", name=name, response_time=milliseconds, response_length=length, exception=None,
            context={}, response=None,
        )  # fmt: skip


class ChatUser(_Asking):
    """Waits for the whole answer."""

    weight = 1

    @tag("chat")
    @task
    def chat(self) -> None:
        """One question to a conductor."""
        self.ask(self.body(self.options.podium_model), "chat")


class StreamUser(_Asking):
    """Reads along, and counts what it has to wait for."""

    weight = 2

    @tag("stream")
    @task
    def stream(self) -> None:
        """One question to a conductor, streamed."""
        body = self.body(self.options.podium_model, stream=True)
        body["podium"]["progress"] = "events"
        began = time.perf_counter()
        with self.client.post(CHAT, json=body, name="stream", stream=True, catch_response=True) as response:
            kind = failure_of(response)
            if kind:
                response.failure(Failure(kind))
                return
            try:
                seen = felt(lines(response), began)
            except BrokenStreamError as broken:
                response.failure(Failure(broken.kind))
            except TimeoutError:
                response.failure(Failure("timeout"))
            except (OSError, HTTPConnectionClosed, HTTPParseError):
                response.failure(Failure("cut"))
            else:
                self.report(seen)

    def report(self, seen: Felt) -> None:
        """What one stream felt like."""
        if seen.first_progress_ms is not None:
            self.fire("first progress", seen.first_progress_ms)
        if seen.first_token_ms is not None:
            self.fire("first token", seen.first_token_ms)
        for gap_ms in seen.token_gaps_ms:
            self.fire("between tokens", gap_ms)
        if seen.done_ms is not None:
            self.fire("whole answer", seen.done_ms, len(seen.text))


class PassThroughUser(_Asking):
    """Asks one worker by its own name: what Podium costs where it does not orchestrate."""

    weight = 1
    worker: str | None = None

    def on_start(self) -> None:
        """Find a worker, unless one was named."""
        self.worker = self.options.podium_worker or self.first_worker()

    @tag("pass-through")
    @task
    def pass_through(self) -> None:
        """One question to one worker."""
        if self.worker:
            self.ask(self.body(self.worker), "pass-through")

    def first_worker(self) -> str | None:
        """The first name in `GET /v1/models` that is a worker of the pool."""
        response = self.client.get("/v1/models", name="models")
        listed = json.loads(response.content or b"{}").get("data", []) if response.ok else []
        return next((model["id"] for model in listed if model.get("podium", {}).get("in_pool")), None)


def lines(response: ResponseContextManager) -> Iterator[bytes]:
    """The lines of a streamed body, each as soon as it is there."""
    while line := response.stream.readline(b"\n"):
        yield line


def answer_of(response: ResponseContextManager) -> list[Any]:
    """The choices of a whole answer; none where the body is no answer."""
    try:
        return json.loads(response.content or b"{}").get("choices", [])
    except ValueError:
        return []


def failure_of(response: ResponseContextManager) -> str | None:
    """The kind of failure, or None where there is an answer."""
    if response.status_code == 200:
        return None
    if not response.status_code:
        error = response.error
        return "timeout" if isinstance(error, TimeoutError) else type(error).__name__
    try:
        code = json.loads(response.content or b"{}")["error"]["code"]
    except (ValueError, KeyError, TypeError):
        code = ""
    return f"http_{response.status_code} {code}".strip()
