"""What a run may reach, and what may become of its texts, whatever is asked, planned or said in it.

It is on the run's task, so the runs inside it and whoever continues it have it too, and on each of its calls,
so that no call is sent to a worker that it leaves out.
"""

from dataclasses import dataclass

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Every level of effort that a request may ask for, in order."""


@dataclass(frozen=True, slots=True)
class Permit:
    """What a run may reach, and what may become of its texts.

    Args:
        workers: those that may be called, the conductor included; None: any.
        max_effort: the longest that a worker may think; None: as long as it likes.
        stores: whether texts may be kept, once the run has ended or on another replica.
        traces: whether texts may be put into spans.
        trains: whether models may be trained on the run.
        hides_personal_data: whether personal data is taken out of texts that are kept or traced.
    """

    workers: tuple[str, ...] | None = None
    max_effort: str | None = None
    stores: bool = True
    traces: bool = True
    trains: bool = True
    hides_personal_data: bool = False

    def allows(self, worker: str) -> bool:
        """Whether the worker of that name may be called."""
        return self.workers is None or worker in self.workers

    def narrow(self, other: "Permit") -> "Permit":
        """What both allow."""
        workers = self.workers if other.workers is None else other.workers
        if self.workers is not None and other.workers is not None:
            workers = tuple(name for name in self.workers if name in other.workers)
        return Permit(
            workers,
            lowest_effort(self.max_effort, other.max_effort),
            self.stores and other.stores,
            self.traces and other.traces,
            self.trains and other.trains,
            self.hides_personal_data or other.hides_personal_data,
        )


def lowest_effort(*limits: str | None) -> str | None:
    """The lowest of some levels; None of them: no limit."""
    return min((limit for limit in limits if limit is not None), key=EFFORTS.index, default=None)


ANYTHING = Permit()
"""Of a run that nobody's policy limits."""
