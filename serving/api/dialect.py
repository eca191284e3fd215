"""Interface of the API dialects and of their encoders, and the choice of a dialect by path.

A dialect is a wire format, such as OpenAI's Chat Completions. It parses the request and writes the response.
The run, its record and its events are the same for all dialects.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from conductor.errors import Cancelled, Interrupted, PodiumError
from conductor.model.failure import Failure
from conductor.model.messages import PendingCall
from conductor.model.reply import FinishReason
from conductor.run.events import (
    AnswerDelta,
    Event,
    RunCancelled,
    RunDetached,
    RunFailed,
    RunFinished,
    RunSuspended,
)
from conductor.run.record import Record, RunRecords
from conductor.run.run import Run
from serving import errors
from serving.accounts.caller import Caller
from serving.api import event_json
from serving.api.error_json import caller_failure, error_json
from serving.api.request import ApiRequest, Podium
from serving.sessions.service import Service

CallId = Callable[[int], str]
"""Function that returns the client's id of a tool call, given the number of the call (`PendingCall.number`).
"""


class Encoder(ABC):
    """Base class of encoders. An encoder writes one run as a stream."""

    def __init__(self, run: Run, podium: Podium, call_id: CallId) -> None:
        self._run, self._podium, self._call_id = run, podium, call_id
        self._is_answering = False

    @abstractmethod
    def begin(self) -> bytes:
        """Return the bytes that begin the stream, before those of the first event."""

    @abstractmethod
    def heartbeat(self) -> bytes:
        """Return bytes that keep an idle client from timing out. Clients do not show them to their users."""

    def encode(self, event: Event) -> bytes:
        """Return the bytes that `event` adds to the stream, often none. A terminal event ends the stream."""
        match event:
            case AnswerDelta():
                self._is_answering = True
                return self._answer(event)
            case RunFinished(finish=finish):
                return self._finish(finish)
            case RunSuspended(calls=calls):
                return self._suspend(calls)
            case RunFailed() | RunCancelled() | RunDetached():
                return self._fail(caller_failure(failure_of(event), self._run.record))
            case _:
                return self._progress(event)

    @abstractmethod
    def _answer(self, piece: AnswerDelta) -> bytes:
        """Return a piece of the answer."""

    @abstractmethod
    def _finish(self, finish: FinishReason) -> bytes:
        """Return the end of the stream of a run that has finished."""

    @abstractmethod
    def _suspend(self, calls: tuple[PendingCall, ...]) -> bytes:
        """Return the tool calls that the run waits for, and the end of the stream."""

    @abstractmethod
    def _fail(self, failure: Failure) -> bytes:
        """Return the end of the stream of a run without a complete answer."""

    @abstractmethod
    def _show(self, progress: dict[str, Any]) -> bytes:
        """Return progress as a JSON object."""

    @abstractmethod
    def _think(self, text: str) -> bytes:
        """Return progress in words, as reasoning."""

    def _progress(self, event: Event) -> bytes:
        match self._podium.progress:
            case "events" if (progress := event_json.progress(event)) is not None:
                return self._show(progress)
            case "reasoning" if not self._is_answering and (line := event_json.in_words(event)):
                return self._think(line)
            case _:
                return b""


class Dialect(Protocol):
    """Base class of wire formats. Methods with a body here do what most dialects need."""

    turns_field = "messages"
    """Request field with the conversation, for errors about the whole of it."""
    format_field = "response_format"
    """Request field with the answer format."""
    joins = False
    """True if retries of any failed request join its run (`deduplication.py`). False if only those with tools do."""
    tells_again = False
    """True if a client can resume a background stream after any of its events. Such a stream is read from the
    store, so that all readers receive the same events.
    """

    def parse(self, body: bytes) -> ApiRequest:
        """Parse a request. The BadTask names the field as the client wrote it."""
        ...

    def body(self, records: RunRecords, request: ApiRequest, call_id: CallId) -> dict[str, Any]:
        """Return the whole response for a run that has finished or waits for tool results."""
        ...

    def encoder(self, run: Run, request: ApiRequest, call_id: CallId) -> Encoder: ...

    def error_body(self, error: PodiumError | Failure, workflow_id: str | None) -> dict[str, Any]:
        """Return the body for a failure before any part of the answer was sent."""
        return {"error": error_json(error, workflow_id)}

    def status(self, error: PodiumError, *, is_paid: bool, is_joined: bool) -> int:
        """Return the HTTP status of a failure, from which clients decide whether to retry.

        If a model `is_paid`, the status must not cause a retry, even without headers. `is_joined`: a retry
        gets this failure instead of a new run.
        """
        status = errors.row(error).status
        return errors.FINAL if is_paid and errors.clients_retry(status) else status

    def background_response(self, records: RunRecords, request: ApiRequest) -> tuple[int, dict[str, Any]]:
        """Return the status and the body for a background run that has started."""
        record = records.record
        return 202, {"id": record.id, "object": "workflow", "status": record.status}

    def check_resumes(self, request: ApiRequest, record: Record) -> None:
        """Check the dialect's conditions for tool results to a waiting run. The BadTask names the field."""

    def new_echo(self, request: ApiRequest, record: Record) -> Mapping[str, Any]:
        """Return the request's fields that its response repeats (the echo), where they differ from the first."""
        return {}

    async def complete(self, request: ApiRequest, service: Service, caller: Caller) -> ApiRequest:
        """Return the request with everything that it refers to, such as stored earlier turns, that the caller
        may see.
        """
        return request


def failure_of(event: RunFailed | RunCancelled | RunDetached) -> Failure | PodiumError:
    """Return the failure for a client whose run ended with `event`."""
    match event:
        case RunFailed(failure=failure):
            return failure
        case RunCancelled():
            return Cancelled("The run was cancelled before its answer was complete.")
        case RunDetached():
            return interruption_error()


def interruption_error() -> PodiumError:
    """Return the error for a client whose run continues on another replica."""
    return Interrupted(
        "The server that ran this request has stopped. Retry with the same Idempotency-Key, or read the run's record.",
        retryable=True,
    )


@dataclass(frozen=True, slots=True)
class Dialects:
    by_path: Mapping[str, Dialect]
    """Dialect of each path that starts runs with `POST`."""
    default: Dialect
    """Dialect of all other paths."""

    def of(self, path: str) -> Dialect:
        """Return the dialect of `path`, which may be below a dialect's path."""
        return next(
            (
                dialect
                for served, dialect in self.by_path.items()
                if path == served or path.startswith(f"{served}/")
            ),
            self.default,
        )

    def error_body(self, error: PodiumError, path: str) -> dict[str, Any]:
        return self.of(path).error_body(error, None)
