"""Synthetic skills that a test can make unavailable."""

from conductor.errors import WorkerUnavailable
from evaluation.synthetic.skills import Assignment, Skill

CALLS_LEFT: int | None = None
"""0 if the skills are not available, else None."""


class Failing(Skill):
    def answer(self, assignment: Assignment) -> str:
        if CALLS_LEFT == 0:
            raise WorkerUnavailable(f"{self.name} is down.", worker=self.name)
        return super().answer(assignment)
