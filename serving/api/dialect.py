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
from conductor.run.record import RunRecords
from conductor.run.run import Run
from serving.api.request import ApiRequest

CallId = Callable[[int], str]
"""The client's id for the call of a tool with that number (`PendingCall`)."""


class Encoder(Protocol):
    """Writes one run as a stream."""

    def begin(self) -> bytes:
        """What comes before the first event."""
        ...

    def encode(self, event: Event) -> bytes:
        """What `event` puts on the stream; nothing, for most. A terminal event ends the stream."""
        ...

    def heartbeat(self) -> bytes:
        """What is sent while nothing is said, so that neither a proxy nor the client gives up."""
        ...


class Dialect(Protocol):
    """One wire format."""

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
