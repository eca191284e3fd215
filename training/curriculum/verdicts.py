"""Judge how well a plan fits a request and its team, from the plan alone. No worker is called."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from conductor.errors import InvalidPlan
from conductor.plan.plan import Format, Step
from conductor.run.plan_requests import parser
from training.curriculum.materials import SMALL_TALK
from training.curriculum.questions import RequestQuestion
from training.curriculum.relevance import is_about, share_named
from training.curriculum.requests import RequestPart, part_rewards
from training.curriculum.teams import DrawnTeam
from training.exact_plan import is_exact_plan

MAX_STEPS = 5


@dataclass(frozen=True, slots=True)
class PlanVerdict:
    """Judgement of one plan.

    Args:
        parsed: whether the plan can run and has no other text around it.
        has_shape: whether it has as many steps as the request has parts, and each step reads exactly what its
            part uses.
        workers: the share of parts whose worker does them as well as any in the team. It is 0 if the number
            of steps is wrong. But if the request has one part, the last step counts.
        about: the share of subtasks that name their part by its own words, and no other part as fully. An
            empty subtask in a plan of one step counts as well. If the number of steps is wrong, a subtask may
            name any part.
    """

    parsed: bool
    steps: int = 0
    has_shape: bool = False
    workers: float = 0.0
    about: float = 0.0
    empty: float = 0.0

    @property
    def is_right(self) -> bool:
        return self.has_shape and self.workers == 1.0


def judge(question: RequestQuestion, text: str) -> PlanVerdict:
    """Judge the plan `text`. Parts that do not depend on each other may be in either order."""
    names = list(question.workers)
    steps = read_steps(text, names, "steps")
    if steps is None or not is_exact_plan("steps", text, names, MAX_STEPS):
        return PlanVerdict(parsed=False)
    verdicts = [_judge_in_order(question, steps, parts) for parts in _orders(question.request.parts)]
    return max(verdicts, key=lambda each: each.about)  # the first of equals


def _orders(parts: Sequence[RequestPart]) -> Iterator[Sequence[RequestPart]]:
    """Yield the allowed orders of the parts. The first two may be swapped if neither reads the other."""
    yield parts
    if len(parts) > 2 and not parts[0].reads and not parts[1].reads:
        swapped = {0: 1, 1: 0}
        rest = [
            replace(part, reads=tuple(sorted(swapped.get(read, read) for read in part.reads)))
            for part in parts[2:]
        ]
        yield [parts[1], parts[0], *rest]


def _judge_in_order(
    question: RequestQuestion, steps: Sequence[Step], parts: Sequence[RequestPart]
) -> PlanVerdict:
    names = list(question.workers)
    chosen = [names.index(step.worker) for step in steps]
    same_length = len(steps) == len(parts)
    if same_length or len(parts) == 1:
        pairs = list(zip(parts, chosen[-len(parts) :], strict=True))
        workers = mean(
            _is_able(part, question.team, worker, chosen[:number])
            for number, (part, worker) in enumerate(pairs)
        )
    else:
        workers = 0.0
    about = mean(_is_about(step, number, question, parts, len(steps)) for number, step in enumerate(steps))
    return PlanVerdict(
        parsed=True,
        steps=len(steps),
        has_shape=same_length and all(s.access == p.reads for s, p in zip(steps, parts, strict=True)),
        workers=workers,
        about=about,
        empty=mean(not step.subtask.strip() for step in steps),
    )


def read_steps(text: str, workers: Sequence[str], format: Format) -> Sequence[Step] | None:
    """Return the steps of a plan's text, or None if it cannot run."""
    reader = parser(format, list(workers), MAX_STEPS)
    try:
        reader.feed(text)
        plan = reader.finish()
    except InvalidPlan:
        return None
    return plan.steps if plan else None


def _is_able(part: RequestPart, team: DrawnTeam, worker: int, before: Sequence[int]) -> bool:
    """Return whether no worker does `part` better. For a check or small talk, none may do it as well for
    less.
    """
    if part.checks or part.domain == SMALL_TALK:
        rewards = part_rewards(part, team, before)
        return rewards[worker] == max(rewards)
    qualities = [mate.quality(part.domain) for mate in team.mates]
    return qualities[worker] == max(qualities)


def _is_about(
    step: Step, number: int, question: RequestQuestion, parts: Sequence[RequestPart], steps: int
) -> bool:
    subtask = step.subtask.strip()
    if not subtask:
        return steps == 1
    if len(parts) == 1:
        return is_about(subtask, " ".join(question.request.turns))
    if steps != len(parts):
        return any(is_about(subtask, part.clause) for part in parts)
    part = parts[number]
    others = [] if part.checks else [each for each in parts if each is not part and not each.checks]
    named = share_named(subtask, part.clause)
    return is_about(subtask, part.clause) and all(
        share_named(subtask, other.clause) < named for other in others
    )


def table(
    questions: Sequence[RequestQuestion], verdicts: Sequence[PlanVerdict]
) -> dict[str, dict[str, float]]:
    """Return the mean of every figure and the number of requests, by kind of request and for all."""
    groups: dict[str, list[PlanVerdict]] = defaultdict(list)
    for question, verdict in zip(questions, verdicts, strict=True):
        groups[question.request.kind].append(verdict)
        groups["all"].append(verdict)
    return {kind: _figures(each) for kind, each in sorted(groups.items())}


def _figures(verdicts: Sequence[PlanVerdict]) -> dict[str, float]:
    return {
        "requests": len(verdicts),
        "parsed": mean(each.parsed for each in verdicts),
        "one_step": mean(each.steps == 1 for each in verdicts),
        "workers": mean(each.workers == 1 for each in verdicts),
        "right": mean(each.is_right for each in verdicts),
        "about": mean(each.about for each in verdicts),
        "empty": mean(each.empty for each in verdicts),
    }
