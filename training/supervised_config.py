"""What a training config says of learning from examples, before any plan is tried: look-ups, plans, expected reward.

Imports in milliseconds: no torch, no TRL.
"""

from math import fsum
from typing import Annotated, Literal

from pydantic import Field, field_validator

from serving.settings.access import Frozen

Choice = Literal["first", "cheapest", "surest"]
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ROUNDING = 1e-9
"""0.7, 0.2 and 0.1 may be that much more than 1 together."""


class LookUpConfig(Frozen):
    """A first lesson for `requests`: whose card fits a few words (`training.curriculum.look_ups`). Without it
    a small model learns to write plans, and asks anybody.
    """

    examples: int = Field(default=12_000, ge=1)
    per_team: int = Field(default=20, ge=1)
    """Look-ups that are learned from together; they share the team's cards."""
    named_per_team: int = Field(default=0, ge=0)
    """Beside them, requests on anything whose field is to be named (`training.curriculum.namings`), in the same row."""
    of_parts_per_team: int = Field(default=0, ge=0)
    """The same for requests of several parts."""
    batch: int = Field(default=1, ge=1)
    """Rows a step, a team each."""
    epochs: float = Field(default=1.0, gt=0)
    learning_rate: float = Field(default=1e-3, gt=0)
    made_up_share: Share = 0.8
    """Of the teams at first, those whose specialities are words drawn at random."""


class WarmStartConfig(Frozen):
    """Supervised learning of plans (`training.examples`): the best one of a request, whose team is known to
    the program that drew it; of all other questions, plans that can run, drawn at random.
    """

    examples: int = Field(default=2000, ge=1)
    batch: int = Field(default=32, ge=1)
    """Rows a step; a row has the examples of one team that stand together."""
    epochs: float = Field(default=1.0, gt=0)
    learning_rate: float = Field(default=1e-3, gt=0)
    prompt_weight: float = Field(default=0.3, ge=0)
    """Weight of a prompt's token relative to a plan's. At 0 the policy may not learn to read the question,
    unless each subtask restates its part of it (`subtask`).
    """
    worker_weight: float = Field(default=1.0, gt=0)
    """The same for a token that chooses a worker, one of some forty in a step."""
    rewarded_share: float = Field(default=0.0, ge=0, le=1)
    """The share of examples that were drawn, run and found right; the others are drawn and not run."""
    best_of: int = Field(default=16, ge=1)
    """Plans drawn for a rewarded example."""
    choose: Choice = "first"
    """A rewarded example is the first right one; or, after all were run, the cheapest, and where costs are
    equal or unknown the one whose workers are right most often; or the latter whatever it costs. `first`
    keeps lucky guesses of a worker that does a little of everything.
    """
    worker_shares: dict[str, Share] = Field(default_factory=dict)
    """Of the steps of unrewarded plans, by worker; the rest is divided equally. A habit to unlearn."""
    step_shares: tuple[Weight, ...] = (0.5, 0.4, 0.1)
    """Relative frequency of plans of one step, two, three ..."""
    matching_share: float = Field(default=0.0, ge=0, le=1)
    """The share of plans with as many steps as the question has parts, where its source says (synthetic ones
    do; else one step); the rest follow `step_shares`. A hint at the shape of a plan, not at its workers.
    """
    read_share: float = Field(default=0.5, ge=0, le=1)
    """A step reads each earlier one with this probability."""
    subtask: str = "Do the {card} part."
    """A step's subtask; `{card}` is its worker's card up to the first comma, colon or full stop, `{part}` the
    part of the question in short, from its source (`facts.parts`): restating the question makes a small model
    read it.
    """
    whole: str = "Answer the question."
    """The same for a worker without a card."""
    names: bool = False
    """Plans write a worker's name instead of its number. The engine reads both; looking up a number's card is
    the one thing that a model from scratch does not learn in minutes.
    """
    fields: tuple[str, ...] = ("worker", "subtask", "access")
    """Their order in a step. Constrained decoding takes `worker` or `subtask` first, and `access` last. `needs`
    before them says what the step needs, in a few words: a thought that makes the choice of the worker one
    look-up, not two.
    """

    @field_validator("worker_shares")
    @classmethod
    def _check_sum(cls, shares: dict[str, float]) -> dict[str, float]:
        if (whole := fsum(shares.values())) > 1 + ROUNDING:
            raise ValueError(f"they are {whole:g} together; make them 1 at most")
        return shares

    @field_validator("step_shares")
    @classmethod
    def _check_lengths(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if not sum(shares):
            raise ValueError("no length of a plan has a share; give at least one, such as [1.0] for one step")
        return shares

    @field_validator("fields")
    @classmethod
    def _check_fields(cls, fields: tuple[str, ...]) -> tuple[str, ...]:
        if sorted(fields[1:] if fields[:1] == ("needs",) else fields) != ["access", "subtask", "worker"]:
            raise ValueError(
                f"{', '.join(fields)}: write worker, subtask and access, each once, in any order; before them "
                "needs, or not"
            )
        return fields


class WorthConfig(Frozen):
    """What a worker is worth for a question that every worker can be asked: how often it is right about such
    questions, less what it costs (`training.worth`). One answer alone says more about luck.
    """

    ridge: float = Field(default=1.0, gt=0)
    """How strongly differences between families, and between their short and long questions, are held back:
    scikit-learn's `Ridge.alpha`.
    """
    usd_weight: float = Field(default=1.0, ge=0)
    """Subtracted for each dollar of a call; 0: nothing."""


class ExpectedRewardConfig(Frozen):
    """Learning from every worker at once, after the warm start: where a question's reward is known for each
    worker, the expected reward of the choice is exact, and so is its gradient (`training.packing.plan_loss`).
    """

    examples: int = Field(default=1000, ge=1)
    batch: int = Field(default=4, ge=1)
    """Rows a step, as in the warm start."""
    epochs: float = Field(default=1.0, gt=0)
    learning_rate: float = Field(default=5e-4, gt=0)


StageConfig = LookUpConfig | WarmStartConfig | ExpectedRewardConfig
"""Of the supervised stages, in their order."""
