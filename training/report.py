"""A run's figures for readers, each with what its workers are: programs say nothing about models."""

from collections.abc import Mapping, Sequence
from typing import Any

STANDS_FOR = {
    "synthetic": "SYNTHETIC workers: small programs with declared skills and error rates, not models",
    "replayed": "REPLAYED workers: what real models once answered; no model was asked",
    "scripted": "SCRIPTED workers: they say what they were told to say",
    "program": "workers that are programs, not models",
    "model": "models",
}
ROWS = (
    ("right", "right"),
    ("right, plans sampled", "sampled"),
    ("one skill", "single"),
    ("two skills", "composite"),
    ("plans that run", "parsed"),
)


def stands_for(kinds: Sequence[str]) -> str:
    """What the workers of one source are, in words."""
    return "; ".join(STANDS_FOR.get(kind, kind) for kind in kinds)


def best_alone(report: Mapping[str, Any], source: str) -> tuple[str, float]:
    """The worker that answers most of a source's held-out questions by itself, and its share."""
    workers = report["alone"][source]["workers"]
    best = max(workers, key=lambda name: workers[name])
    return best, workers[best]


def lines(report: Mapping[str, Any]) -> list[str]:
    """The held-out figures, one line a source; none where the run held no questions out."""
    text: list[str] = []
    for source, before in report["before"].items():
        worker, share = best_alone(report, source)
        after, kinds = report["after"][source]["right"], stands_for(report["provenance"][source])
        text.append(
            f"{source}: held-out questions right: {before['right']:.3f} before, {after:.3f} after; "
            f"{worker} alone {share:.3f} ({kinds})"
        )
    return text


def tables(report: Mapping[str, Any]) -> str:
    """The same as Markdown, a table a source."""
    if not report["before"]:
        return "Not measured: the run held no questions out."
    return "\n\n".join(_table(report, source) for source in report["before"])


def _table(report: Mapping[str, Any], source: str) -> str:
    before, after = report["before"][source], report["after"][source]
    worker, share = best_alone(report, source)
    kinds, oracle = stands_for(report["provenance"][source]), report["alone"][source]["oracle"]
    rows = [
        f"| {label} | {before[key]:.3f} | {after[key]:.3f} |"
        for label, key in ROWS
        if before.get(key) is not None
    ]
    table = ["| share | after the warm start | after GRPO |", "| --- | --- | --- |", *rows]
    head = f"**{source}**, {after['questions']} questions held out, {kinds}:"
    foot = f"The best worker by itself ({worker}): {share:.3f}. At least one worker: {oracle:.3f}."
    return "\n".join([head, "", *table, "", foot])
