"""Timelines of one plan under three schedulers, without other traffic.

- `sequential`, as in the paper: the conductor writes the whole plan, then the steps run one after another.
  Steps that no other step reads run too.
- `plan_then_run`: the conductor writes the whole plan, then each step starts as soon as its inputs are
  complete.
- `podium`: each step starts as soon as it is written and its inputs are complete.

Which step is the last one is known only when the plan ends, so no part of the answer is shown earlier.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Scheduler = Literal["sequential", "plan_then_run", "podium"]
SCHEDULERS: tuple[Scheduler, ...] = get_args(Scheduler)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of one step: when its last byte is written, the steps that it reads, and the seconds that it
    takes to its first token and to its end.
    """

    written_s: float
    reads: tuple[int, ...]
    first_token_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Start of each step, first token of the answer and end of the answer, in seconds since the request."""

    starts_s: tuple[float, ...]
    first_token_s: float
    end_s: float


def timeline(steps: Sequence[StepTimes], plan_end_s: float, scheduler: Scheduler) -> Timeline:
    """Calculate the timeline of a plan.

    Args:
        steps: the steps, at least one. A step reads only earlier ones.
        plan_end_s: when the last byte of the plan is written.
        scheduler: the scheduler to apply.
    """
    starts_s: list[float] = []
    ends_s: list[float] = []
    for step in steps:
        inputs_s = max((ends_s[read] for read in step.reads), default=0.0)
        if scheduler == "podium":
            start_s = max(step.written_s, inputs_s)
        elif scheduler == "plan_then_run":
            start_s = max(plan_end_s, inputs_s)
        else:
            start_s = max(plan_end_s, ends_s[-1] if ends_s else 0.0)
        starts_s.append(start_s)
        ends_s.append(start_s + step.duration_s)
    first_s = max(plan_end_s, starts_s[-1] + steps[-1].first_token_s)
    return Timeline(tuple(starts_s), first_s, max(plan_end_s, ends_s[-1]))
