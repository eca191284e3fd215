"""Run `podium eval` with parsed options."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from evaluation import EvaluationError, report
from evaluation.aggregate import comparisons, row
from evaluation.backends import Caps, EvaluationBackend
from evaluation.backends.in_process import InProcessBackend, with_conductor_at
from evaluation.backends.over_http import HttpBackend
from evaluation.cli import EvalOptions
from evaluation.console import Terminal
from evaluation.questions import Question
from evaluation.results import ResultLog
from evaluation.run import EvalConfig, Evaluation
from evaluation.sources import load_all
from evaluation.statistics import RESAMPLES
from evaluation.strategies import expand, make
from evaluation.strategies.base import Strategy
from podium.command_line.process import machine
from serving.settings.settings import load


def evaluate(options: EvalOptions, command: str) -> None:
    """Run the evaluation and write its report. `command` is the command line, for the report."""
    terminal = Terminal()
    questions, training, left_out = _questions(options)
    with terminal.progress():
        figures = asyncio.run(_run(options, questions, training, terminal))
    figures |= {
        "title": "Comparison of strategies",
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": command,
        "machine": f"{machine()} at the end",
        "seed": options.seed,
        "questions": {"names": options.questions, "count": len(questions)},
        "training": {"names": options.train, "count": len(training), "left_out": left_out},
    }
    page = report.write(options.out, figures)
    terminal.table(figures["rows"])
    for line in (*figures["warnings"], f"Report: {page}"):
        terminal.say(line)


def _questions(options: EvalOptions) -> tuple[list[Question], list[Question], int]:
    """Return questions, training questions, and how many of the latter were dropped as duplicates of the
    former.
    """
    questions = load_all(options.questions, options.count, options.seed)
    seed = options.seed + 1 if options.train_seed is None else options.train_seed
    training = load_all(options.train, options.train_count, seed) if options.train else []
    texts = {question.text for question in questions}
    unseen = [question for question in training if question.text not in texts]
    if training and not unseen:
        raise EvaluationError(
            "All --train questions are also in --questions. Choose other training questions."
        )
    return questions, unseen, len(training) - len(unseen)


async def _run(
    options: EvalOptions, questions: list[Question], training: list[Question], terminal: Terminal
) -> dict[str, Any]:
    caps = Caps(
        options.max_steps,
        options.rounds,
        options.max_output_tokens,
        options.max_tokens,
        options.max_cost_usd,
        options.deadline_s,
        options.temperature,
    )
    config = EvalConfig(questions, training, caps, options.seed, options.concurrency, options.strategy_usd)
    backend: EvaluationBackend = (
        InProcessBackend(load(options.settings), model=options.model)
        if options.settings
        else await HttpBackend.connect(options.url or "", options.model)
    )
    strategies: list[Strategy] = []
    try:
        names = expand(options.strategies, backend, learns=bool(training))
        strategies = make(names, backend, partial(_open_backend, options))
        with ResultLog(options.out / "results.jsonl") as log:
            evaluation = Evaluation(config, backend, log, terminal, options.out / "embeddings.npz")
            outcome = await evaluation.run(strategies)
    finally:
        for strategy in strategies:
            await strategy.aclose()
        await backend.aclose()
    rows = [
        row(
            each.label,
            each.about,
            list(outcome.results[each.label].values()),
            len(questions),
            outcome.learned[each.label],
            outcome.stopped.get(each.label, ""),
        )
        for each in strategies
    ]
    return {
        "pool": {
            "where": str(options.settings or options.url),
            "workers": list(backend.workers),
            "provenance": dict(backend.provenance),
        },
        "warnings": _warnings(backend.provenance, rows),
        "caps": {name: value if value is None else str(value) for name, value in asdict(caps).items()},
        "rows": rows,
        "comparisons": comparisons(outcome.results, options.seed),
        "resamples": RESAMPLES,
    }


def _open_backend(
    options: EvalOptions, path: str | None, at: str | None, model: str | None
) -> EvaluationBackend:
    """Open a pool for one strategy. Implements `OpenBackend`."""
    place = path or options.settings
    if place is None:
        raise EvaluationError(
            f"at={at} needs --settings. With --url, the server already knows the addresses of its conductors."
        )
    settings = load(place)
    if at:
        settings = with_conductor_at(settings, at, model)
    return InProcessBackend(settings, model=options.model if options.settings else None)


PROVENANCE = {
    "replayed": "Replayed: {names} return recorded answers of real models. No model was called, "
    "so latencies are meaningless.",
    "synthetic": "Synthetic: {names} are programs with declared skills, error rates and prices, not models.",
    "scripted": "Scripted: {names} return fixed texts, so their answers are meaningless.",
    "program": "{names} are programs, not models.",
}


def _warnings(provenance: Mapping[str, str], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the warnings that a reader must see before the figures."""
    warnings = [
        text.format(names=", ".join(name for name, kind in provenance.items() if kind == each))
        for each, text in PROVENANCE.items()
        if each in provenance.values()
    ]
    if any("vote" not in row["strategy"] and row["errors"] for row in rows):
        warnings.append(
            "Some questions failed and count as wrong. See the last column and the table below it."
        )
    return warnings
