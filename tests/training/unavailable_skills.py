"""Synthetic skills that a test can make unavailable."""

from conductor.errors import WorkerUnavailable
from evaluation.synthetic.skills import Assignment, Skill

CALLS_LEFT: int | None = None
"""None: the skills are available. 0: they are not."""


class Failing(Skill):
    def answer(self, assignment: Assignment) -> str:
        if CALLS_LEFT == 0:
            raise WorkerUnavailable(f"{self.name} is down.", worker=self.name)
        return super().answer(assignment)
