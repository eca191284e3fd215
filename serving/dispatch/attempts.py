"""State of one call's attempts: workers, failures, and the remaining queue."""

from dataclasses import dataclass, field

from conductor.errors import WorkerError
from conductor.model.call import Call
from conductor.model.failure import Attempt
from conductor.model.terms import Places
from serving.dispatch.conforming import Repair
from serving.dispatch.continuing import Form
from serving.dispatch.route import Route


@dataclass(slots=True, eq=False)
class Tries:
    """Attempts at one worker.

    Args:
        form: form in which the call is sent.
        repair: invalid answer that the worker has to repair, or None.
    """

    form: Form = "plain"
    repair: Repair | None = None
    number: int = 0
    """Number of attempts made."""
    waited_s: float = 0.0
    """Total wait before the attempts, in seconds."""
    was_empty: bool = False
    """True if one of them returned an empty answer."""
    places: Places = field(default_factory=Places)


@dataclass(slots=True, eq=False)
class Attempts:
    """All attempts at one call.

    Args:
        call: call for the next attempt. A failure may lower its output limit.
        queue: workers in the order in which they are tried. A worker that is skipped for now is appended
            again.
        failed: failed and skipped attempts for the record, oldest first.
        begins: whether the run had not paid for anything before the call.
    """

    call: Call
    queue: list[Route]
    failed: list[Attempt]
    begins: bool
    at: int = 0
    """Index of the current worker."""
    errors: list[WorkerError] = field(default_factory=list[WorkerError])
    """Errors of earlier workers."""
    skipped: set[str] = field(default_factory=set[str])
    """Names of the workers that were skipped once. They are not skipped again."""
    n_not_made: int = 0
    """Number of entries in `failed` that are skips and not attempts."""
    waited_s: float = 0.0
    """Total time in queues that the call left, in seconds."""
    tries: Tries = field(default_factory=Tries)
    probes_until_s: float = 0.0
    """See `WorkerHealth.begin_call`."""
    had_answer: bool = False
    """True if the newest attempt returned an answer. If the attempt failed all the same, the answer was not
    usable.
    """
    wrong: Repair | None = None
    """Answer of the newest attempt if it does not match the requested format, or None."""
    may_ask_again: bool | None = None
    """Whether to retry after an empty answer. None: the newest attempt did not return an empty answer."""
    deployment: str = ""
    """Deployment of the newest answer. Empty if there was no answer, or if the worker has no deployments."""

    @property
    def route(self) -> Route:
        """Current worker."""
        return self.queue[self.at]

    @property
    def others(self) -> list[Route]:
        """Workers after the current one."""
        return self.queue[self.at + 1 :]

    @property
    def number(self) -> int:
        """Number of the next attempt, for `CallSite.attempt`."""
        return self.call.site.attempt + len(self.failed) - self.n_not_made

    def bring_forward(self, name: str) -> None:
        """Move a worker to the front of the remaining queue, if it is in there."""
        for free in [each for each in self.others if each.name == name][:1]:
            del self.queue[self.queue.index(free, self.at + 1)]
            self.queue.insert(self.at + 1, free)
