"""A question and who may answer it: what one plan is written for."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from conductor.model.messages import Message
from conductor.model.worker import PoolMember
from evaluation.questions import Question


@dataclass(frozen=True, slots=True)
class TeamQuestion:
    """A question and the workers that may be used for it, in the order that the conductor is shown."""

    question: Question
    workers: tuple[str, ...]
    members: Mapping[str, PoolMember] = field(default_factory=dict[str, PoolMember])
    """The workers themselves, where they are not the pool's."""
    cards: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of workers by name, what the conductor reads in place of their own cards."""

    @property
    def conversation(self) -> tuple[Message, ...]:
        """As the server would get it."""
        turns = (*self.question.earlier, self.question.text)
        return tuple(
            Message.of("assistant" if number % 2 else "user", turn) for number, turn in enumerate(turns)
        )
