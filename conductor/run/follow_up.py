"""Follow-up turns of a conversation: whether the worker of the last answer keeps the conversation, and its cache."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from conductor.model.worker import PoolMember
from conductor.plan.plan import Plan

Course = Literal["stay", "speculate", "ask"]
"""How a follow-up turn is answered.

- `stay`: the conversation's worker answers, and no plan is written.
- `speculate`: the conversation's worker is called while the conductor decides.
- `ask`: the conductor decides first.
"""


@dataclass(slots=True, eq=False)
class Agreement:
    """Counts of follow-up turns in which the conductor's plan kept the conversation's worker or replaced it.

    One object per pool. Older turns count less.
    """

    agreed: float = 9.0
    differed: float = 1.0
    plan_s: float = 0.4
    """Mean time that a plan takes, in seconds."""

    def note(self, *, agrees: bool, plan_s: float) -> None:
        """Count a turn.

        Args:
            agrees: whether the conversation's worker was kept.
            plan_s: time that the plan took, in seconds.
        """
        raise NotImplementedError

    @property
    def share_differing(self) -> float:
        """Share of turns in which the worker was replaced."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Facts about a turn of a conversation whose last answer came from `worker`.

    Args:
        worker: worker of the last answer.
        prompt_tokens: tokens of this turn's prompt, estimated.
        cached_tokens: tokens of this conversation that are in a provider's cache now, by worker. 0 if the provider has
            no lower price for cached tokens.
        answer_tokens: mean length of the answers so far, in tokens.
        turns: number of user turns before this one.
        is_tool_loop: whether the conversation ends with tool results.
        stickiness: weight of the lost cache. 0: the conductor alone decides.
        usd_per_s: value of a second of waiting, in US dollars. None: never speculate.
        shares_machine: whether the worker and the conductor are CPU engines of this machine.
        agreement: counts of earlier decisions of this pool.
    """

    worker: str
    prompt_tokens: int
    cached_tokens: Mapping[str, int]
    answer_tokens: int
    turns: int
    is_tool_loop: bool
    stickiness: float
    usd_per_s: Decimal | None
    shares_machine: bool
    agreement: Agreement


def cost_usd(worker: str, pool: Mapping[str, PoolMember], follow_up: FollowUp) -> Decimal | None:
    """Return the estimated cost of this turn with `worker`, or None if its price is unknown."""
    raise NotImplementedError


def lost_usd(plan: Plan, pool: Mapping[str, PoolMember], follow_up: FollowUp) -> Decimal | None:
    """Return the cost of reading the lost part of the cache again, or None if a price is unknown."""
    raise NotImplementedError


def gain_usd(plan: Plan, pool: Mapping[str, PoolMember], follow_up: FollowUp) -> Decimal | None:
    """Return the expected gain of `plan` over the conversation's worker, or None if a price is unknown."""
    raise NotImplementedError


def may_switch(plan: Plan, pool: Mapping[str, PoolMember], follow_up: FollowUp) -> bool:
    """Return whether `plan` may replace the conversation's worker."""
    raise NotImplementedError


def course(
    pool: Mapping[str, PoolMember], follow_up: FollowUp, *, has_limits: bool, fits_conductor: bool
) -> tuple[Course, str]:
    """Return how to answer this turn, and the reason.

    Args:
        pool: workers that the request may use, by name.
        follow_up: facts about the turn.
        has_limits: whether the request limits its cost or its tokens.
        fits_conductor: whether the conductor's prompt fits into the conductor's context.
    """
    raise NotImplementedError


def describe(pool: Mapping[str, PoolMember], follow_up: FollowUp) -> str:
    """Return what the conductor's prompt says about the cache of each worker, or "" if no cache has a value."""
    raise NotImplementedError
