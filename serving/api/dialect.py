"""Interface of the wire formats (dialects), and their choice by path.

The run, its record and its events are the same for all dialects. A dialect parses the request and writes the
response.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from conductor.errors import Cancelled, Interrupted, PodiumError
from conductor.model.failure import Failure
from conductor.run.events import Event
from conductor.run.record import Record, RunRecords
from conductor.run.run import Run
from serving import errors
from serving.api.request import ApiRequest

CallId = Callable[[int], str]
"""Returns the client's id for the tool call with a number (`PendingCall`)."""


class EarlierRuns(Protocol):
    """Stored runs and conversations that the caller may continue."""

    async def find(self, id: str) -> RunRecords | None:
        """Return a run, or None if the caller has no such run.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...

    async def call_id(self, id: str) -> CallId:
        """Return the function for the call ids of a run. Raises like `find`."""
        ...

    async def items(self, conversation: str) -> list[dict[str, Any]]:
        """Return the items of a conversation, oldest first.

        Raises:
            UnknownName: the caller has no such conversation.
            NotAllowed: the caller's policy does not allow texts to be stored.
            TooLarge: the conversation is full.
            StoreUnavailable: the store is unreachable.
        """
        ...


class Encoder(Protocol):
    """Encoder of one run as a stream."""

    def begin(self) -> bytes:
        """Return what comes before the first event."""
        ...

    def encode(self, event: Event) -> bytes:
        """Return what `event` adds to the stream, often nothing. A terminal event ends the stream."""
        ...

    def heartbeat(self) -> bytes:
        """Return bytes that keep an idle client from timing out, but that it does not show."""
        ...


class Dialect(Protocol):
    """Base class of wire formats. Methods with a body here do what most dialects need."""

    turns_field = "messages"
    """Request field with the conversation, for errors about the whole of it."""
    format_field = "response_format"
    """Request field with the answer format."""
    joins = False
    """True if every retry after a failure joins the run of the first request
    (`serving/sessions/deduplication.py`). False: only requests with tools do.
    """
    tells_again = False
    """True if a background stream can be resumed after any of its events. It is then read from the store, so
    that all readers receive the same events.
    """

    def parse(self, body: bytes) -> ApiRequest:
        """Parse a request.

        Raises:
            BadTask: a field is invalid. The message names it as the client wrote it.
        """
        ...

    def body(self, records: RunRecords, request: ApiRequest, call_id: CallId) -> dict[str, Any]:
        """Return the whole response for a run that has finished or waits for tool results."""
        ...

    def encoder(self, run: Run, request: ApiRequest, call_id: CallId) -> Encoder:
        """Return the encoder for the stream of a run."""
        ...

    def error_body(self, error: PodiumError | Failure, workflow_id: str | None) -> dict[str, Any]:
        """Return the body for a failure before any part of the answer was sent."""
        ...

    def status(self, error: PodiumError, *, is_paid: bool, is_joined: bool) -> int:
        """Return the HTTP status of a failure, from which clients decide whether to retry.

        Args:
            error: the failure.
            is_paid: whether a model was called. Then the status must not cause a retry, whatever headers a
                client reads.
            is_joined: whether a retry would get this failure instead of a new run.
        """
        status = errors.row(error).status
        return errors.FINAL if is_paid and errors.is_asked_again(status) else status

    def background_response(self, records: RunRecords, request: ApiRequest) -> tuple[int, dict[str, Any]]:
        """Return the status and the body for a background run that has started."""
        record = records.record
        return 202, {"id": record.id, "object": "workflow", "status": record.status}

    def check_resumes(self, request: ApiRequest, record: Record) -> None:
        """Check that a request may send tool results to a run, as far as it depends on the dialect.

        Raises:
            BadTask: a field contradicts the run. The message names it.
        """

    def new_echo(self, request: ApiRequest, record: Record) -> Mapping[str, Any]:
        """Return the echoed fields of a request with tool results that differ from those of the run's first
        request.
        """
        return {}

    async def complete(self, request: ApiRequest, earlier: EarlierRuns) -> ApiRequest:
        """Return `request` with everything that it refers to, such as stored earlier turns.

        Raises:
            BadTask: something is not stored, or the caller may not see it.
            StoreUnavailable: the store is unreachable.
        """
        return request


def cancellation_error() -> PodiumError:
    """Return the error for a client whose run was cancelled by another request."""
    return Cancelled("The run was cancelled before its answer was complete.")


def interruption_error() -> PodiumError:
    """Return the error for a client whose run continues on another replica."""
    return Interrupted(
        "The server that ran this request has stopped. Retry with the same Idempotency-Key, or read the run's record.",
        retryable=True,
    )


@dataclass(frozen=True, slots=True)
class Dialects:
    """All dialects, each with its path."""

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
        """Return the body of an error without a run, in the dialect of `path`."""
        return self.of(path).error_body(error, None)
