"""Config of the supervised stages: look-ups, warm start and expected reward.

The module imports in milliseconds, without torch or TRL.
"""

from math import fsum
from typing import Annotated, Literal

from pydantic import Field, field_validator

from serving.settings.model_access import Frozen

Choice = Literal["first", "cheapest", "surest"]
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ROUNDING = 1e-9
"""Tolerance for sums of shares. For example, 0.7, 0.2 and 0.1 may add up to slightly more than 1."""


class LookUpConfig(Frozen):
    """A first lesson for the source `requests`: match a few words with a card
    (`training.curriculum.look_ups`).

    Without it, a small model learns to write plans, but chooses workers arbitrarily.
    """

    examples: int = Field(default=12_000, ge=1)
    per_team: int = Field(default=20, ge=1)
    """Number of look-ups per row. They share a team's cards."""
    named_per_team: int = Field(default=0, ge=0)
    """Number of additional requests of one part per row, for which the conductor learns to write the field that
    they need (`training.curriculum.namings`). They may be about any topic.
    """
    of_parts_per_team: int = Field(default=0, ge=0)
    """Number of additional requests per row that have several parts."""
    batch: int = Field(default=1, ge=1)
    """Number of rows per step. Each row has one team."""
    epochs: float = Field(default=1.0, gt=0)
    learning_rate: float = Field(default=1e-3, gt=0)
    made_up_share: Share = 0.8
    """Share of teams at the start whose specialities are random words."""


class WarmStartConfig(Frozen):
    """Supervised learning of plans (`training.examples`).

    For a request, it is the best plan, which is known from how its team was generated. For all other
    questions, they are random plans that can run.
    """

    examples: int = Field(default=2000, ge=1)
    batch: int = Field(default=32, ge=1)
    """Number of rows per step. A row has consecutive examples of one team."""
    epochs: float = Field(default=1.0, gt=0)
    learning_rate: float = Field(default=1e-3, gt=0)
    prompt_weight: float = Field(default=0.3, ge=0)
    """Weight of a prompt's token relative to a plan's token.

    With 0, the policy may not learn to read the question, unless each subtask restates its part of it
    (`subtask`).
    """
    worker_weight: float = Field(default=1.0, gt=0)
    """Weight of the token that chooses a worker, which is one of about forty in a step."""
    rewarded_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the examples whose plan was drawn, run and found right. Other plans are drawn but not run."""
    best_of: int = Field(default=16, ge=1)
    """Number of plans that are drawn for a rewarded example."""
    choose: Choice = "first"
    """Which right plan becomes a rewarded example.

    - `first`: the first one. It keeps lucky guesses of a worker that does a little of everything.
    - `cheapest`: the cheapest of all plans, which are all run. If costs are equal or unknown, it is the one
      whose workers are right most often.
    - `surest`: the one whose workers are right most often, whatever its cost.
    """
    worker_shares: dict[str, Share] = Field(default_factory=dict)
    """Share of the steps of unrewarded plans, by worker. The rest is divided equally. It sets a habit that
    later stages must unlearn.
    """
    step_shares: tuple[Weight, ...] = (0.5, 0.4, 0.1)
    """Relative frequency of plans with one step, two, three ..."""
    matching_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the plans that have as many steps as the question has parts, or one step if its source has no
    parts. The other plans follow `step_shares`.

    Synthetic questions have parts. This share hints at the shape of a plan, but not at its workers.
    """
    read_share: float = Field(default=0.5, ge=0, le=1)
    """Probability that a step reads an earlier step. It applies to each earlier step separately."""
    subtask: str = "Do the {card} part."
    """Subtask of a step. `{card}` is the worker's card up to the first comma, colon or full stop. `{part}` is
    a short text of the question's part, from its source (`facts.parts`).

    A small model reads the question better if it has to restate it.
    """
    whole: str = "Answer the question."
    """Subtask for a worker without a card."""
    names: bool = False
    """True if plans have a worker's name in place of its number. The engine reads both.

    Looking up the card of a number is the one thing that a model from scratch does not learn in minutes.
    """
    fields: tuple[str, ...] = ("worker", "subtask", "access")
    """Order of the fields of a step. Constrained decoding requires `worker` or `subtask` as the first and
    `access` as the last.

    An additional `needs` in front of them says in a few words what the step needs. The choice of the worker
    then takes one look-up and not two.
    """

    @field_validator("worker_shares")
    @classmethod
    def _check_sum(cls, shares: dict[str, float]) -> dict[str, float]:
        if (whole := fsum(shares.values())) > 1 + ROUNDING:
            raise ValueError(f"the shares must sum to at most 1, but sum to {whole:g}")
        return shares

    @field_validator("step_shares")
    @classmethod
    def _check_lengths(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if not sum(shares):
            raise ValueError("at least one share must be above 0, such as [1.0] for plans of one step")
        return shares

    @field_validator("fields")
    @classmethod
    def _check_fields(cls, fields: tuple[str, ...]) -> tuple[str, ...]:
        if sorted(fields[1:] if fields[:1] == ("needs",) else fields) != ["access", "subtask", "worker"]:
            raise ValueError(
                "must be worker, subtask and access in any order, optionally after needs, "
                f"but is {', '.join(fields)}"
            )
        return fields


class WorthConfig(Frozen):
    """How to estimate the worth of a worker for a question: its expected accuracy on such questions minus its
    cost (`training.worth`).

    A single answer would mostly reflect luck.
    """

    ridge: float = Field(default=1.0, gt=0)
    """Regularization of the differences between families, and between short and long questions of a family.
    It is `alpha` of scikit-learn's `Ridge`.
    """
    usd_weight: float = Field(default=1.0, ge=0)
    """Worth that a dollar of a call's cost subtracts. With 0, cost does not count."""


class ExpectedRewardConfig(Frozen):
    """Learning from all workers at once, after the warm start.

    If the reward of every worker is known for a question, the expected reward of the choice is exact, and so
    is its gradient (`training.packing.plan_loss`).
    """

    examples: int = Field(default=1000, ge=1)
    batch: int = Field(default=4, ge=1)
    """Number of rows per step, as in the warm start."""
    epochs: float = Field(default=1.0, gt=0)
    learning_rate: float = Field(default=5e-4, gt=0)


StageConfig = LookUpConfig | WarmStartConfig | ExpectedRewardConfig
"""Config of a supervised stage. The types are in the order of the stages."""
