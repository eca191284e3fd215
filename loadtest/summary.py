"""Compute the figures of a run from its samples.

Percentiles are by nearest rank, or None if nothing was measured. Rates cover the time in which requests were
sent, and count only answers that arrived within it: answers from a queue that drains afterwards are not
throughput.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from loadtest import percentile
from loadtest.objective import is_good
from loadtest.recording import LEFT, NOT_STARTED, OK, PHASES, UNFINISHED, Sample

Json = dict[str, Any]
PERCENTILES = (50, 90, 95, 99)


def spread(values: Iterable[float | None]) -> Json | None:
    """Return count, mean, percentiles and maximum of the known values, or None if there are none."""
    known_values = sorted(value for value in values if value is not None)
    if not known_values:
        return None
    ranks = {f"p{percent}": percentile(known_values, percent) for percent in PERCENTILES}
    statistics = {"mean": sum(known_values) / len(known_values), **ranks, "max": known_values[-1]}
    return {"n": len(known_values)} | {name: round(value, 6) for name, value in statistics.items()}


def summary(
    samples: Sequence[Sample], ran_s: float, limits_ms: Mapping[str, float], *, interrupted: bool
) -> Json:
    """Compute every figure of a run that sent requests for `ran_s` seconds. Open requests of an interrupted
    run are not judged.
    """
    return {
        "ran_s": round(ran_s, 3),
        "requests": requests(samples, ran_s),
        "errors": dict(Counter(each.outcome for each in samples if each.is_failure).most_common()),
        "goodput": goodput(samples, ran_s, limits_ms, interrupted=interrupted),
        "phases_ms": {kind: phases(chosen) for kind, chosen in by_kind(samples).items()},
        "between_tokens_ms": spread(gap for each in samples for gap in each.token_gaps_ms),
        "sent_late_ms": spread((s.sent_s - s.due_s) * 1000 for s in samples if s.outcome != NOT_STARTED),
        "outside_run_ms": spread(map(outside_run_ms, samples)),
        "per_request": per_request([each for each in samples if each.outcome == OK]),
    }


def requests(samples: Sequence[Sample], ran_s: float) -> Json:

    def count(of: Callable[[Sample], bool]) -> int:
        return sum(map(of, samples))

    in_time = count(lambda s: s.outcome == OK and end_s(s) <= ran_s)
    return {
        "due": len(samples),
        "answered": count(lambda s: s.outcome == OK),
        "answered_in_ran_s": in_time,
        "failed": count(lambda s: s.is_failure),
        "left": count(lambda s: s.outcome == LEFT),
        "not_started": count(lambda s: s.outcome == NOT_STARTED),
        "unfinished": count(lambda s: s.outcome == UNFINISHED),
        "fallbacks": count(lambda s: s.fallback),
        "due_per_s": round(len(samples) / ran_s, 3) if ran_s else None,
        "answered_per_s": round(in_time / ran_s, 3) if ran_s else None,
    }


def goodput(
    samples: Sequence[Sample], ran_s: float, limits_ms: Mapping[str, float], *, interrupted: bool
) -> Json:
    """Compute how many requests met the objective.

    `per_s` is the rate of good answers that arrived within `ran_s`. `part` is the share of good answers among
    all judged requests. A request is not judged if its client disconnected on purpose, or if it was still
    open when the run was interrupted.
    """
    excused = {LEFT, UNFINISHED} if interrupted else {LEFT}
    judged = [each for each in samples if each.outcome not in excused]
    good = [each for each in judged if is_good(each, limits_ms)]
    in_time = sum(end_s(each) <= ran_s for each in good)
    return {
        "objective_ms": dict(limits_ms),
        "judged": len(judged),
        "good": len(good),
        "good_in_ran_s": in_time,
        "part": round(len(good) / len(judged), 4) if judged else None,
        "per_s": round(in_time / ran_s, 3) if ran_s else None,
    }


def end_s(sample: Sample) -> float:
    """Return when the complete answer arrived, in seconds since the start, or infinity."""
    return sample.due_s + sample.phases_ms["end"] / 1000 if "end" in sample.phases_ms else math.inf


def by_kind(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """Group the answered samples by kind. `all` is first, and alone if there is one kind."""
    answered = [each for each in samples if each.outcome == OK]
    kinds = sorted({each.kind for each in answered})
    split = {kind: [each for each in answered if each.kind == kind] for kind in kinds}
    return {"all": answered} | (split if len(kinds) > 1 else {})


def phases(samples: Sequence[Sample]) -> Json:
    """Compute the milliseconds to the end of each phase."""
    return {phase: spread(each.phases_ms.get(phase) for each in samples) for phase in PHASES}


def outside_run_ms(sample: Sample) -> float | None:
    """Return the milliseconds outside the run: network, proxy and queues. Counted from when the request was
    due, minus the run's wall time.
    """
    if sample.outcome != OK or sample.wall_s is None:
        return None
    return sample.phases_ms["end"] - sample.wall_s * 1000


def critical_path_over_wall(sample: Sample) -> float | None:
    """Return the run's critical path over its wall time. 1 means that steps waited only for inputs."""
    if not sample.wall_s or sample.critical_path_s is None:
        return None
    return sample.critical_path_s / sample.wall_s


def per_request(answered: Sequence[Sample]) -> Json:
    """Compute calls, tokens and cost per answer. Unknown costs are counted, but not summed."""
    known_costs = [each.cost_usd for each in answered if each.cost_usd is not None]
    return {
        "critical_path_over_wall": spread(map(critical_path_over_wall, answered)),
        "calls": spread(each.calls for each in answered),
        "tokens": spread(each.tokens for each in answered),
        "cost_usd": spread(known_costs),
        "cost_usd_sum": round(sum(known_costs), 9) if known_costs else None,
        "cost_unknown": len(answered) - len(known_costs),
    }
