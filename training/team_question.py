"""A question and who may answer it: what one plan is written for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import cycle

from conductor.model.messages import Message, Role
from conductor.model.pool_member import PoolMember
from evaluation.questions import Question


@dataclass(frozen=True, slots=True)
class TeamQuestion:
    """A question and the workers that may be used for it, in the order that the conductor is shown."""

    question: Question
    workers: tuple[str, ...]
    members: Mapping[str, PoolMember] = field(default_factory=dict[str, PoolMember])
    """The workers themselves, where they are not the pool's."""

    @property
    def conversation(self) -> tuple[Message, ...]:
        """As the server would get it."""
        roles: Iterable[Role] = cycle(("user", "assistant"))
        turns = (*self.question.earlier, self.question.text)
        return tuple(Message.of(role, turn) for role, turn in zip(roles, turns, strict=False))
