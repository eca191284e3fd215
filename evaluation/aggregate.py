"""From results to the figures of a report: one row a strategy, and pairs compared. Knows neither files nor HTML."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from conductor.money import total
from evaluation.results import Result
from evaluation.statistics import accuracy, paired_bootstrap, percentile

Json = dict[str, Any]


def row(
    label: str, about: str, results: Sequence[Result], asked: int, learned: Mapping[str, Any], stopped: str
) -> Json:
    """A strategy's figures.

    Args:
        label: its name.
        about: what it is.
        results: one a question.
        asked: how many questions there were for it.
        learned: what it learned or chose.
        stopped: why it did not answer all of them; empty where it did.
    """
    outcomes = [result.outcome for result in results]
    errors = Counter(outcome.error for outcome in outcomes if outcome.error is not None)
    cost = total([outcome.cost_usd for outcome in outcomes])
    n = len(results)
    return {
        "strategy": label, "about": about, "learned": dict(learned), "stopped": stopped,
        "questions": asked, "answered": n,
        "accuracy": asdict(accuracy([result.correct for result in results])),
        "prompt_tokens": _mean([outcome.prompt_tokens for outcome in outcomes]),
        "completion_tokens": _mean([outcome.completion_tokens for outcome in outcomes]),
        "calls": _mean([outcome.calls for outcome in outcomes]),
        "steps": _mean([outcome.steps for outcome in outcomes]),
        "cost_usd": None if cost is None or not n else float(cost / n),
        "cost_usd_sum": None if cost is None else float(cost),
        "cost_unknown": sum(outcome.cost_usd is None for outcome in outcomes),
        "wall_s": _spread([outcome.wall_s for outcome in outcomes]),
        "critical_path_s": _spread([outcome.critical_path_s for outcome in outcomes]),
        "format_failures": sum(outcome.format_failures for outcome in outcomes),
        "fallbacks": sum(outcome.fallback is not None for outcome in outcomes),
        "abstentions": sum(result.abstained for result in results),
        "errors": dict(errors.most_common()),
        "workers": dict(Counter(worker for outcome in outcomes for worker in outcome.workers).most_common()),
        "families": {
            f"{source} / {family}" if source != family else family: asdict(accuracy([r.correct for r in chosen]))
            for (source, family), chosen in sorted(_grouped(results, lambda r: (r.source, r.family)).items())
        },
    }  # fmt: skip


def comparisons(results: Mapping[str, Mapping[str, Result]], seed: int) -> list[Json]:
    """Every two strategies, on the questions that both have a result for; the more accurate one of the two first."""
    labels = [label for label, held in results.items() if held]
    found: list[Json] = []
    for at, one in enumerate(labels):
        for other in labels[at + 1 :]:
            both = [question for question in results[one] if question in results[other]]
            if not both:
                continue
            rights = {
                label: [results[label][question].correct for question in both] for label in (one, other)
            }
            first, second = (one, other) if sum(rights[one]) >= sum(rights[other]) else (other, one)
            told = asdict(paired_bootstrap(rights[first], rights[second], seed))
            found.append({"first": first, "second": second} | told)
    return found


def _mean(numbers: Sequence[float | None]) -> float | None:
    """None where one is unknown, or there are none."""
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known and len(known) == len(numbers) else None


def _spread(values: Sequence[float]) -> Json:
    return {"p50": percentile(values, 50), "p95": percentile(values, 95)}


def _grouped(results: Sequence[Result], by: Callable[[Result], Any]) -> dict[Any, list[Result]]:
    found: dict[Any, list[Result]] = {}
    for result in results:
        found.setdefault(by(result), []).append(result)
    return found
