"""Figures of a run as text, with the kind of its workers, as those of programs do not apply to models."""

from collections.abc import Mapping, Sequence
from typing import Any

STANDS_FOR = {
    "synthetic": "SYNTHETIC workers: small programs with declared skills and error rates, not models",
    "replayed": "REPLAYED workers: recorded answers of real models; no model was called",
    "scripted": "SCRIPTED workers: fixed replies",
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
    return "; ".join(STANDS_FOR.get(kind, kind) for kind in kinds)


def best_alone(report: Mapping[str, Any], source: str) -> tuple[str, float]:
    """Return the worker that answers most of a source's held-out questions correctly alone, and its share."""
    workers = report["alone"][source]["workers"]
    best = max(workers, key=lambda name: workers[name])
    return best, workers[best]


def lines(report: Mapping[str, Any]) -> list[str]:
    """Return the held-out figures, one line per source. The list may be empty."""
    text: list[str] = []
    for source, before in report["before"].items():
        worker, share = best_alone(report, source)
        after, kinds = report["after"][source]["right"], stands_for(report["provenance"][source])
        text.append(
            f"{source}: share of held-out questions answered correctly: {before['right']:.3f} before, {after:.3f} after; "
            f"{worker} alone {share:.3f} ({kinds})"
        )
    return text


def tables(report: Mapping[str, Any]) -> str:
    """Return the held-out figures as Markdown, one table per source."""
    if not report["before"]:
        return "Not measured, because the run had no held-out questions."
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
    head = f"**{source}**, {after['questions']} held-out questions, {kinds}:"
    foot = f"Best worker alone ({worker}): {share:.3f}. At least one worker right: {oracle:.3f}."
    return "\n".join([head, "", *table, "", foot])
