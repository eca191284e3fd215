"""Question, and the team of workers that may answer it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from conductor.model.messages import Message
from conductor.model.worker import PoolMember
from evaluation.questions import Question


@dataclass(frozen=True, slots=True)
class TeamQuestion:
    """Question with its allowed workers, in the order in which the conductor sees them."""

    question: Question
    workers: tuple[str, ...]
    members: Mapping[str, PoolMember] = field(default_factory=dict[str, PoolMember])
    """Workers by name, if they are not those of the pool."""
    cards: Mapping[str, str] = field(default_factory=dict[str, str])
    """Cards by worker. The conductor sees them in place of the workers' own cards."""

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The question as messages, as a client would send it."""
        turns = (*self.question.earlier, self.question.text)
        return tuple(
            Message.of("assistant" if number % 2 else "user", turn) for number, turn in enumerate(turns)
        )
