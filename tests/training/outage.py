"""Synthetic skills that cannot be reached while a test says so."""

from conductor.errors import WorkerUnavailable
from evaluation.synthetic.skills import Assignment, Skill

CALLS_LEFT: int | None = None
"""None: they can be reached; 0: they cannot."""


class Failing(Skill):
    """A skill with a switch."""

    def answer(self, assignment: Assignment) -> str:
        if CALLS_LEFT == 0:
            raise WorkerUnavailable(f"{self.name} is down.", worker=self.name)
        return super().answer(assignment)
