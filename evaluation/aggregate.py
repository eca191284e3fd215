"""Compute the figures of a report from results: one row per strategy, and comparisons of every two
strategies.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

import numpy as np

from conductor.model.usage import total
from evaluation.outcome import sum_known
from evaluation.results import Result
from evaluation.statistics import accuracy, bootstrap_difference

Json = dict[str, Any]


def row(
    label: str,
    about: str,
    results: Sequence[Result],
    n_questions: int,
    learned: Mapping[str, Any],
    stopped: str,
) -> Json:
    """Return the figures of one strategy. `stopped` is the reason why it ended early, or ""."""
    outcomes = [result.outcome for result in results]
    errors = Counter(outcome.error for outcome in outcomes if outcome.error is not None)
    cost = total([outcome.cost_usd for outcome in outcomes])
    return {
        "strategy": label,
        "about": about,
        "learned": dict(learned),
        "stopped": stopped,
        "questions": n_questions,
        "answered": len(results),
        "accuracy": _accuracy(results),
        "prompt_tokens": _mean([outcome.prompt_tokens for outcome in outcomes]),
        "completion_tokens": _mean([outcome.completion_tokens for outcome in outcomes]),
        "calls": _mean([outcome.calls for outcome in outcomes]),
        "steps": _mean([outcome.steps for outcome in outcomes]),
        "cost_usd": None if cost is None or not results else float(cost / len(results)),
        "cost_usd_sum": None if cost is None else float(cost),
        "cost_unknown": sum(outcome.cost_usd is None for outcome in outcomes),
        "wall_s": percentiles([outcome.wall_s for outcome in outcomes]),
        "critical_path_s": percentiles([outcome.critical_path_s for outcome in outcomes]),
        "format_failures": sum_known([outcome.format_failures for outcome in outcomes]),
        "fallbacks": sum(outcome.fallback is not None for outcome in outcomes),
        "abstentions": sum(result.no_answer for result in results),
        "errors": dict(errors.most_common()),
        "workers": dict(Counter(worker for outcome in outcomes for worker in outcome.workers).most_common()),
        "families": _families(results),
    }


def comparisons(results: Mapping[str, Mapping[str, Result]], seed: int) -> list[Json]:
    """Compare every two strategies on the questions that both answered. The more accurate one comes first."""
    pairs: list[Json] = []
    for one, other in combinations([label for label, each in results.items() if each], 2):
        both = [question for question in results[one] if question in results[other]]
        if not both:
            continue
        rights = {label: [results[label][question].correct for question in both] for label in (one, other)}
        first, second = (one, other) if sum(rights[one]) >= sum(rights[other]) else (other, one)
        difference = asdict(bootstrap_difference(rights[first], rights[second], seed))
        pairs.append({"first": first, "second": second} | difference)
    return pairs


def percentiles(values: Sequence[float]) -> Json:
    """Return the 50th and the 95th percentile, or None for both if there are no values."""
    return {
        f"p{percent}": float(np.percentile(values, percent, method="inverted_cdf")) if values else None
        for percent in (50, 95)
    }


def _families(results: Sequence[Result]) -> Json:
    families: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        families[result.source, result.family].append(result)
    return {
        f"{source} / {family}" if source != family else family: _accuracy(members)
        for (source, family), members in sorted(families.items())
    }


def _accuracy(results: Sequence[Result]) -> Json:
    return asdict(accuracy([result.correct for result in results]))


def _mean(numbers: Sequence[float | None]) -> float | None:
    """Return the mean, or None if there are no numbers or one of them is unknown."""
    known_numbers = [number for number in numbers if number is not None]
    return (
        sum(known_numbers) / len(known_numbers)
        if known_numbers and len(known_numbers) == len(numbers)
        else None
    )
