"""What was tried for one call: which workers, how often, what failed, and what is left to try."""

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
        form: how the call is sent.
        repair: the answer that was not of the form that was asked for; None: none.
    """

    form: Form = "plain"
    repair: Repair | None = None
    number: int = 0
    """How many were made."""
    waited_s: float = 0.0
    """Seconds waited before them, together."""
    was_empty: bool = False
    """Whether one of them ended without a word."""
    places: Places = field(default_factory=Places)


@dataclass(slots=True, eq=False)
class Attempts:
    """All attempts at one call.

    Args:
        call: as the next attempt is sent it; its answer may have to be shorter after a failure.
        queue: the workers in the order in which they are tried. It grows by those that are skipped for now.
        failed: what goes on record, oldest first; at first the workers that are skipped.
        begins: whether the run had paid for nothing before the call.
    """

    call: Call
    queue: list[Route]
    failed: list[Attempt]
    begins: bool
    at: int = 0
    """Index of the current worker."""
    errors: list[WorkerError] = field(default_factory=list[WorkerError])
    """Why earlier workers failed."""
    skipped: set[str] = field(default_factory=set[str])
    """Names of the workers that were skipped once: they are not skipped again."""
    n_not_made: int = 0
    """How many of `failed` were not made."""
    waited_s: float = 0.0
    """Seconds in queues that the call left."""
    tries: Tries = field(default_factory=Tries)
    probes_until_s: float = 0.0
    """See `WorkerHealth.begin_call`."""
    had_answer: bool = False
    """Whether the newest attempt gave an answer, which was not the one that was asked for."""
    wrong: Repair | None = None
    """That answer, if it was not of the form that was asked for."""
    may_ask_again: bool | None = None
    """Whether an answer without a word is asked for once more. None: the newest attempt gave no such answer."""
    deployment: str = ""
    """Deployment that gave the newest answer. Empty: there was no answer, or the worker has one place."""

    @property
    def route(self) -> Route:
        """The current worker."""
        return self.queue[self.at]

    @property
    def others(self) -> list[Route]:
        """The workers after it."""
        return self.queue[self.at + 1 :]

    @property
    def number(self) -> int:
        """Number of the next attempt: `CallSite.attempt`."""
        return self.call.site.attempt + len(self.failed) - self.n_not_made

    def bring_forward(self, name: str) -> None:
        """Try the worker of that name next, if it is still to be tried."""
        for free in [each for each in self.others if each.name == name][:1]:
            del self.queue[self.queue.index(free, self.at + 1)]
            self.queue.insert(self.at + 1, free)
