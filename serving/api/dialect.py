"""The port to a wire format in which clients ask and are answered, and the choice of one by path.

The run, its record and its events are the same for all of them; a dialect reads a body and writes what its
clients read.
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
"""The client's id for the call of a tool with that number (`PendingCall`)."""


class EarlierRuns(Protocol):
    """What is kept of earlier runs, as far as the caller may go on with them."""

    async def find(self, id: str) -> RunRecords | None:
        """The run of that id; None where there is none for the caller.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def call_id(self, id: str) -> CallId:
        """The client's ids of the calls of that run; raises as `find`."""
        ...

    async def items(self, conversation: str) -> list[dict[str, Any]]:
        """What a conversation holds, the oldest item first.

        Raises:
            UnknownName: it is not kept, or not for the caller.
            NotAllowed: no text may be kept for the caller.
            TooLarge: it is full.
            StoreUnavailable: the store is away.
        """
        ...


class Encoder(Protocol):
    """Writes one run as a stream."""

    def begin(self) -> bytes:
        """What comes before the first event."""
        ...

    def encode(self, event: Event) -> bytes:
        """What `event` puts on the stream; nothing, for most. A terminal event ends the stream."""
        ...

    def heartbeat(self) -> bytes:
        """What shows a client that is waiting that somebody is at work: what its idle timer counts, and nothing
        that it shows.
        """
        ...


class Dialect(Protocol):
    """One wire format. What has a body here is what most of them do: a dialect subclasses this."""

    turns_field = "messages"
    """Where a request has its conversation, for errors about all of it."""
    format_field = "response_format"
    """Where it says what the answer must be."""
    joins = False
    """A request that is sent again after a failure joins the first one's run (`serving/sessions/deduplication.py`), whatever
    it asks for; elsewhere only those do that offer tools.
    """
    tells_again = False
    """A stream in the background can be taken up again after any of its events, so it is told from the store, the same
    to everybody.
    """

    def parse(self, body: bytes) -> ApiRequest:
        """The request in `body`.

        Raises:
            BadTask: naming the field, in the caller's spelling, and what it may be.
        """
        ...

    def body(self, records: RunRecords, request: ApiRequest, call_id: CallId) -> dict[str, Any]:
        """The answer of a run that has finished, or waits for results of tools; whole."""
        ...

    def encoder(self, run: Run, request: ApiRequest, call_id: CallId) -> Encoder:
        """What writes the answer of a run as a stream."""
        ...

    def error_body(self, error: PodiumError | Failure, workflow_id: str | None) -> dict[str, Any]:
        """A failure, where nothing of the answer was sent."""
        ...

    def status(self, error: PodiumError, *, is_paid: bool, is_joined: bool) -> int:
        """The HTTP status of a failure: what its clients do next depends on it. `is_paid`: a model was called for
        it, so that no client may take it for something to be asked again, whatever headers it reads. `is_joined`:
        the same request, sent again, gets this failure and no new run.
        """
        status = errors.row(error).status
        return errors.FINAL if is_paid and errors.is_asked_again(status) else status

    def accepted(self, records: RunRecords, request: ApiRequest) -> tuple[int, dict[str, Any]]:
        """The status and the body for a run in the background that has begun."""
        record = records.record
        return 202, {"id": record.id, "object": "workflow", "status": record.status}

    def check_resumes(self, request: ApiRequest, record: Record) -> None:
        """Whether a request may bring results of tools to that run, as far as only its dialect knows.

        Raises:
            BadTask: naming the field that says otherwise.
        """

    def new_echo(self, request: ApiRequest, record: Record) -> Mapping[str, Any]:
        """What answers repeat of a request that brings results of tools, as far as that run's first was another."""
        return {}

    async def complete(self, request: ApiRequest, earlier: EarlierRuns) -> ApiRequest:
        """`request` with what it only refers to, such as earlier turns that the server keeps.

        Raises:
            BadTask: what it refers to is not kept, or not for its caller to see.
            StoreUnavailable: the store is away.
        """
        return request


def cancelled() -> PodiumError:
    """The error for a client whose run somebody else ended."""
    return Cancelled("The run was cancelled before its answer was complete.")


def interrupted() -> PodiumError:
    """The error for a client whose run goes on elsewhere."""
    return Interrupted(
        "The server that ran this has stopped. Ask again with the same Idempotency-Key, or read the run's record.",
        retryable=True,
    )


@dataclass(frozen=True, slots=True)
class Dialects:
    """The dialects that are served, each at its path."""

    by_path: Mapping[str, Dialect]
    """`POST` to one of these is answered in that dialect."""
    default: Dialect
    """Spoken everywhere else."""

    def of(self, path: str) -> Dialect:
        """What is spoken at `path`, and at every path below one that is served."""
        return next(
            (
                dialect
                for served, dialect in self.by_path.items()
                if path == served or path.startswith(f"{served}/")
            ),
            self.default,
        )

    def error_body(self, error: PodiumError, path: str) -> dict[str, Any]:
        """A failure for whoever asked at `path`, where no run was begun."""
        return self.of(path).error_body(error, None)
