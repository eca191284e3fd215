"""A question and the team that may answer it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from conductor.model.messages import Message
from conductor.model.worker import PoolMember
from evaluation.questions import Question


@dataclass(frozen=True, slots=True)
class TeamQuestion:
    """A question and its allowed workers, in the order shown to the conductor."""

    question: Question
    workers: tuple[str, ...]
    members: Mapping[str, PoolMember] = field(default_factory=dict[str, PoolMember])
    """The workers themselves, if they are not those of the pool."""
    cards: Mapping[str, str] = field(default_factory=dict[str, str])
    """Cards by worker, shown to the conductor in place of the workers' own."""

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The question as messages, as a client would send it."""
        turns = (*self.question.earlier, self.question.text)
        return tuple(
            Message.of("assistant" if number % 2 else "user", turn) for number, turn in enumerate(turns)
        )
