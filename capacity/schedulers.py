"""Three ways to run one plan, with nobody else there: when each step starts and ends, and what the user sees when.

`sequential`, the paper's: the whole plan, then one step after another, dead ones too. `plan_then_run`: the whole plan, then
each step as soon as what it reads is there. `podium`: each step as soon as it is written and what it reads is there. The last
step is known when the plan ends, so nothing of the answer is shown before that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Scheduler = Literal["sequential", "plan_then_run", "podium"]
SCHEDULERS: tuple[Scheduler, ...] = get_args(Scheduler)


@dataclass(frozen=True, slots=True)
class Timed:
    """A step and its times: when its last byte is written, what it reads, until its first token, and until its end."""

    written_s: float
    reads: tuple[int, ...]
    first_token_s: float
    lasts_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What came of it, in seconds since the request."""

    starts_s: tuple[float, ...]
    first_token_s: float
    end_s: float


def timeline(steps: Sequence[Timed], plan_end_s: float, scheduler: Scheduler) -> Timeline:
    """Run `steps` on paper.

    Args:
        steps: at least one; reads point backwards.
        plan_end_s: when the plan's last byte is written.
        scheduler: which of the three.
    """
    starts_s: list[float] = []
    ends_s: list[float] = []
    for step in steps:
        read_s = max((ends_s[read] for read in step.reads), default=0.0)
        if scheduler == "podium":
            start_s = max(step.written_s, read_s)
        elif scheduler == "plan_then_run":
            start_s = max(plan_end_s, read_s)
        else:
            start_s = max(plan_end_s, ends_s[-1] if ends_s else 0.0)
        starts_s.append(start_s)
        ends_s.append(start_s + step.lasts_s)
    first_s = max(plan_end_s, starts_s[-1] + steps[-1].first_token_s)
    return Timeline(tuple(starts_s), first_s, max(plan_end_s, ends_s[-1]))
