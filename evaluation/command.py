"""What `podium eval` and `podium recorded-pool` do once their command lines are read (`cli.py`)."""

import argparse
import asyncio
import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from evaluation import report
from evaluation.backends.in_process import Asker, Caps, EngineAsker, conducted_at
from evaluation.backends.over_http import UrlAsker
from evaluation.console import Terminal
from evaluation.errors import EvaluationError
from evaluation.aggregate import comparisons, row
from evaluation.questions import Question
from evaluation.replay_settings import read_prices, settings_of, written
from evaluation.results import ResultLog
from evaluation.run import Evaluation, Order
from evaluation.sources import load_all
from evaluation.statistics import RESAMPLES
from evaluation.strategies import expanded, make
from evaluation.strategies.base import Strategy
from serving.settings import load


def recorded_pool(read: argparse.Namespace, command: list[str]) -> None:
    """`podium recorded-pool`."""
    prices = read_prices(read.prices) if read.prices else None
    path = str(read.path.resolve())
    text = written(settings_of(path, read.models, prices, read.difficulty), path)
    if read.out is None:
        sys.stdout.write(text)
    else:
        read.out.parent.mkdir(parents=True, exist_ok=True)
        read.out.write_text(text, encoding="utf-8")


def evaluate(read: argparse.Namespace, command: list[str]) -> None:
    """`podium eval`."""
    show = Terminal()
    questions, training, left_out = _questions(read)
    with show.running():
        told = asyncio.run(_evaluated(read, questions, training, show))
    told |= {
        "title": "Strategies side by side",
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": shlex.join(command),
        "machine": _machine(),
        "seed": read.seed,
        "questions": {"names": read.questions, "count": len(questions)},
        "training": {"names": read.train, "count": len(training), "left_out": left_out},
    }
    page = report.write(read.out, told)
    show.table(told["rows"])
    for warning in told["warnings"]:
        show.say(warning)
    show.say(f"Report: {page}")


def _questions(read: argparse.Namespace) -> tuple[list[Question], list[Question], int]:
    """To judge by, to learn from, and how many were left out of the latter because they are among the former."""
    questions = load_all(read.questions, read.count, read.seed)
    seed = read.seed + 1 if read.train_seed is None else read.train_seed
    training = load_all(read.train, read.train_count, seed) if read.train else []
    judged_by = {question.text for question in questions}
    kept = [question for question in training if question.text not in judged_by]
    if training and not kept:
        raise EvaluationError("Every --train question is also among --questions; name others to learn from.")
    return questions, kept, len(training) - len(kept)


async def _evaluated(
    read: argparse.Namespace, questions: list[Question], training: list[Question], show: Terminal
) -> dict[str, Any]:
    caps = Caps(
        read.max_steps, read.rounds, read.max_output_tokens, read.max_tokens, read.max_cost_usd, read.deadline_s,
        read.temperature,
    )  # fmt: skip
    order = Order(questions, training, caps, read.seed, read.concurrency, read.strategy_usd)
    asker = (
        EngineAsker(load(read.settings), model=read.model)
        if read.settings
        else await UrlAsker.connected(read.url, read.model)
    )
    strategies: list[Strategy] = []
    try:
        names = expanded(read.strategies, asker, learns=bool(training))
        strategies = make(names, asker, partial(_opened, read))
        with ResultLog(read.out / "results.jsonl") as log:
            done = await Evaluation(order, asker, log, show, read.out / "embeddings.npz").run(strategies)
    finally:
        for strategy in strategies:
            await strategy.aclose()
        await asker.aclose()
    rows = [
        row(each.label, each.about, list(done.results[each.label].values()), len(questions),
            done.learned[each.label], done.stopped.get(each.label, ""))
        for each in strategies
    ]  # fmt: skip
    return {
        "pool": {
            "where": str(read.settings or read.url),
            "workers": list(asker.workers),
            "provenance": dict(asker.provenance),
        },
        "warnings": _warnings(asker.provenance, rows),
        "caps": {name: value if value is None else str(value) for name, value in asdict(caps).items()},
        "rows": rows,
        "comparisons": comparisons(done.results, read.seed),
        "resamples": RESAMPLES,
    }


def _opened(read: argparse.Namespace, path: str | None, at: str | None, model: str | None) -> Asker:
    """See `OpenAsker`."""
    if path is None and read.settings is None:
        raise EvaluationError(
            f"at={at} goes with --settings; with --url the server knows where its conductors are."
        )
    settings = load(path or read.settings)
    return EngineAsker(
        conducted_at(settings, at, model) if at else settings, model=read.model if read.settings else None
    )


SAID = {
    "replayed": "Replayed: {names} say what real models once answered; no model was asked, and latencies mean nothing.",
    "synthetic": "Synthetic: {names} are programs with declared skills, error rates and prices, not models.",
    "scripted": "Scripted: {names} say what they were told to say; their answers mean nothing.",
    "program": "{names} are programs and no models.",
}


def _warnings(provenance: Mapping[str, str], rows: Sequence[dict[str, Any]]) -> list[str]:
    """What a reader must know before the figures."""
    said = [
        text.format(names=", ".join(name for name, kind in provenance.items() if kind == each))
        for each, text in SAID.items()
        if each in provenance.values()
    ]
    if any("vote" not in row["strategy"] and row["errors"] for row in rows):
        said.append(
            "Some questions failed (see the last column and the table below it); they count as wrong."
        )
    return said


def _machine() -> str:
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"{os.cpu_count()} cores, {memory_gb:.0f} GB, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f} at the end"
    )
