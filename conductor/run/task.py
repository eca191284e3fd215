"""What one request asks for. Knows nothing of how it is done."""

from dataclasses import dataclass, field

from conductor.model.messages import Message
from conductor.model.worker import Call
from conductor.plan.plan import Plan
from conductor.run.events import Source
from conductor.run.ledger import Budget


@dataclass(frozen=True, slots=True)
class Task:
    """What one request asks for.

    Args:
        conversation: the user's messages, at least one.
        model: the name that was asked for.
        sampling: what the user asked of the answer; its `messages` are ignored.
        plan: run this one; None lets the conductor write it.
        plan_source: who gave `plan`.
        workers: the names that may be used, in the order the conductor sees them; None: the whole pool.
        exclude_workers: names that may not.
        max_steps, rounds, depth: of plans; `depth` above 0 lets a step be a whole run of its own, so deep.
        budget: for everything together.
        deadline_s: from now to the last byte.
        plan_only: stop when the plan is there; no step is run.
        strict: a plan that cannot run is the end of it: no complaint to the conductor, no worker by itself. For who judges plans.
    """

    conversation: tuple[Message, ...]
    model: str = "podium"
    sampling: Call = field(default_factory=lambda: Call(messages=()))
    plan: Plan | None = None
    plan_source: Source = "client"
    workers: tuple[str, ...] | None = None
    exclude_workers: tuple[str, ...] = ()
    max_steps: int = 5
    rounds: int = 1
    depth: int = 0
    budget: Budget = Budget()
    deadline_s: float | None = None
    plan_only: bool = False
    strict: bool = False

    @property
    def shows_pictures(self) -> bool:
        """Whether the user shows any."""
        return any(message.has_image for message in self.conversation)
