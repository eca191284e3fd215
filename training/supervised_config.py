"""Config of the supervised stages: look-ups, warm start and expected reward.

The module imports in milliseconds, without torch or TRL.
"""

from math import fsum
from typing import Annotated, Literal

from pydantic import Field, field_validator

from serving.settings.access import Frozen

Choice = Literal["first", "cheapest", "surest"]
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ROUNDING = 1e-9
"""Tolerance for sums of shares, since 0.7, 0.2 and 0.1 may add up to slightly more than 1."""


class LookUpConfig(Frozen):
    """A first lesson for `requests`: match a few words with a card (`training.curriculum.look_ups`). Without
    it, a small model learns to write plans but chooses workers arbitrarily.
    """

    examples: int = Field(default=12_000, ge=1)
    per_team: int = Field(default=20, ge=1)
    """Look-ups per row; they share a team's cards."""
    named_per_team: int = Field(default=0, ge=0)
    """Additional requests per row whose field is to be named, on any topic
    (`training.curriculum.namings`).
    """
    of_parts_per_team: int = Field(default=0, ge=0)
    """Additional requests of several parts per row."""
    batch: int = Field(default=1, ge=1)
    """Rows per step, one per team."""
    epochs: float = Field(default=1.0, gt=0)
    learning_rate: float = Field(default=1e-3, gt=0)
    made_up_share: Share = 0.8
    """Share of the first teams whose specialities are random words."""


class WarmStartConfig(Frozen):
    """Supervised learning of plans (`training.examples`): of a request, the best plan, known from how its
    team was generated; of all other questions, random plans that can run.
    """

    examples: int = Field(default=2000, ge=1)
    batch: int = Field(default=32, ge=1)
    """Rows per step. A row has consecutive examples of one team."""
    epochs: float = Field(default=1.0, gt=0)
    learning_rate: float = Field(default=1e-3, gt=0)
    prompt_weight: float = Field(default=0.3, ge=0)
    """Weight of a prompt's token relative to a plan's. At 0, the policy may not learn to read the question,
    unless each subtask restates its part of it (`subtask`).
    """
    worker_weight: float = Field(default=1.0, gt=0)
    """Weight of the token that chooses a worker, one of about forty in a step."""
    rewarded_share: float = Field(default=0.0, ge=0, le=1)
    """Share of examples whose plan was drawn, run and found right. The others are drawn and not run."""
    best_of: int = Field(default=16, ge=1)
    """Plans drawn per rewarded example."""
    choose: Choice = "first"
    """Which right plan becomes a rewarded example. `first`: the first one; it keeps lucky guesses of a worker
    that does a little of everything. `cheapest`: run all plans and take the cheapest; if costs are equal or
    unknown, the one whose workers are right most often. `surest`: the one whose workers are right most often,
    whatever its cost.
    """
    worker_shares: dict[str, Share] = Field(default_factory=dict)
    """Share of the steps of unrewarded plans by worker; the rest is divided equally. A habit to unlearn."""
    step_shares: tuple[Weight, ...] = (0.5, 0.4, 0.1)
    """Relative frequency of plans with one step, two, three ..."""
    matching_share: float = Field(default=0.0, ge=0, le=1)
    """Share of plans with as many steps as the question has parts, or one step if its source has no parts
    (synthetic questions have them). The rest follow `step_shares`. It hints at the shape of a plan, not at
    its workers.
    """
    read_share: float = Field(default=0.5, ge=0, le=1)
    """Probability that a step reads an earlier one, for each of them."""
    subtask: str = "Do the {card} part."
    """A step's subtask. `{card}` is the worker's card up to the first comma, colon or full stop. `{part}` is
    a short text of the question's part, from its source (`facts.parts`). Restating the question makes a small
    model read it.
    """
    whole: str = "Answer the question."
    """Subtask for a worker without a card."""
    names: bool = False
    """Write a worker's name in plans instead of its number. The engine reads both. Looking up the card of a
    number is the one thing that a model from scratch does not learn in minutes.
    """
    fields: tuple[str, ...] = ("worker", "subtask", "access")
    """Order of a step's fields. Constrained decoding takes `worker` or `subtask` first, and `access` last. An
    additional `needs` in front of them states in a few words what the step needs; the choice of the worker
    then takes one look-up instead of two.
    """

    @field_validator("worker_shares")
    @classmethod
    def _check_sum(cls, shares: dict[str, float]) -> dict[str, float]:
        if (whole := fsum(shares.values())) > 1 + ROUNDING:
            raise ValueError(f"the shares sum to {whole:g}; they must sum to 1 at most")
        return shares

    @field_validator("step_shares")
    @classmethod
    def _check_lengths(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if not sum(shares):
            raise ValueError("all shares are 0; set at least one, such as [1.0] for one step")
        return shares

    @field_validator("fields")
    @classmethod
    def _check_fields(cls, fields: tuple[str, ...]) -> tuple[str, ...]:
        if sorted(fields[1:] if fields[:1] == ("needs",) else fields) != ["access", "subtask", "worker"]:
            raise ValueError(
                f"{', '.join(fields)}: list worker, subtask and access once each, in any order, "
                "optionally after needs"
            )
        return fields


class WorthConfig(Frozen):
    """The worth of a worker for a question: its expected accuracy on such questions minus its cost
    (`training.worth`). A single answer mostly reflects luck.
    """

    ridge: float = Field(default=1.0, gt=0)
    """Regularization of the differences between families, and between short and long questions within a
    family: `alpha` of scikit-learn's `Ridge`.
    """
    usd_weight: float = Field(default=1.0, ge=0)
    """Worth subtracted per dollar of a call's cost; 0: none."""


class ExpectedRewardConfig(Frozen):
    """Learning from all workers at once, after the warm start. If the reward of every worker is known for a
    question, the expected reward of the choice is exact, and so is its gradient
    (`training.packing.plan_loss`).
    """

    examples: int = Field(default=1000, ge=1)
    batch: int = Field(default=4, ge=1)
    """Rows per step, as in the warm start."""
    epochs: float = Field(default=1.0, gt=0)
    learning_rate: float = Field(default=5e-4, gt=0)


StageConfig = LookUpConfig | WarmStartConfig | ExpectedRewardConfig
"""Config of a supervised stage, in the order of the stages."""
