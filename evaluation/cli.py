"""`podium`, and `python -m evaluation`, which is `podium eval`.

Exit codes: 0 done; 1 stopped by something outside, such as a full disk; 2 it cannot be done as it was asked for; 130 stopped with
Ctrl-C. After 1 and 130 the same command goes on where it was.
"""

import argparse
import asyncio
import os
import platform
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from conductor.errors import PodiumError
from evaluation.errors import EvaluationError
from evaluation.naming import count
from evaluation.sources import SOURCES
from evaluation.strategies import LEARNED, STRATEGIES, USUAL

TABLES = "question sets:\n{questions}\n\nstrategies:\n{strategies}\n\n{usual}\n"


def podium(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    made = argparse.ArgumentParser(prog="podium", description="Podium's tools beside `make`.")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    evaluating(
        commands.add_parser("eval", help="compare strategies on questions with known answers", **_layout())
    )
    pooling(commands.add_parser("recorded-pool", help="settings that replay recorded answers of real models"))
    read = made.parse_args(given)
    return ended(read, ["podium", *given])


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m evaluation`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    made = argparse.ArgumentParser(prog="python -m evaluation", **_layout())
    evaluating(made)
    return ended(made.parse_args(given), ["podium", "eval", *given])


def _layout() -> dict[str, Any]:
    listed = {
        "questions": "\n".join(f"  {name:16}{how}" for name, (_, how) in SOURCES.items()),
        "strategies": "\n".join(f"  {name:18}{how}" for name, (_, how) in STRATEGIES.items()),
        "usual": f"`usual` stands for {', '.join(USUAL)}; `learned` for {', '.join(LEARNED)}. docs/evaluation.md has examples.",
    }
    return {
        "description": "Compare strategies on the same questions, pool and caps; write report.html and report.json.",
        "epilog": TABLES.format(**listed),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }


def evaluating(made: argparse.ArgumentParser) -> None:
    """Options of `podium eval`."""
    whom = made.add_mutually_exclusive_group(required=True)
    whom.add_argument("--settings", type=Path, help="settings YAML; its workers are called from this process")
    whom.add_argument("--url", help="a running Podium; a key goes into PODIUM_API_KEY")
    made.add_argument("--model", help="with --url: the conductor to ask (the server's first)")
    made.add_argument(
        "--questions", nargs="+", required=True, metavar="SET", help="see below; several are put together"
    )
    made.add_argument("--strategies", nargs="+", default=["usual"], metavar="NAME", help="see below (usual)")
    made.add_argument(
        "--train", nargs="+", default=[], metavar="SET", help="question sets to learn from and choose by"
    )
    made.add_argument("--count", type=count, help="questions of each set (all of a fixed set; 100 of others)")
    made.add_argument("--train-count", type=count, help="the same for --train")
    made.add_argument("--seed", type=int, default=0, help="of questions, samples and lots (%(default)s)")
    made.add_argument("--train-seed", type=int, help="of generated training questions (--seed + 1)")
    made.add_argument(
        "--out", type=Path, default=Path("build/eval"), help="folder of results and report (%(default)s)"
    )
    made.add_argument(
        "--concurrency", type=count, default=16, help="questions under way at once (%(default)s)"
    )
    made.add_argument("--max-steps", type=count, default=5, help="of a conductor's plan (%(default)s)")
    made.add_argument("--rounds", type=count, default=1, help="of a conductor (%(default)s)")
    made.add_argument("--max-output-tokens", type=count, help="of one call")
    made.add_argument("--max-tokens", type=count, help="of one question, all calls together")
    made.add_argument("--max-cost-usd", type=_usd, help="likewise, in dollars")
    made.add_argument(
        "--strategy-usd", type=_usd, help="a strategy that has spent so much begins no further question"
    )
    made.add_argument("--deadline-s", type=float, default=300.0, help="of one run (%(default)s)")
    made.add_argument("--temperature", type=float, help="of workers, where a strategy has none of its own")
    made.set_defaults(do=evaluate)


def pooling(made: argparse.ArgumentParser) -> None:
    """Options of `podium recorded-pool`."""
    made.description = "Write settings in which every worker replays one model of a recorded pool."
    made.add_argument("path", type=Path, help="the recorded pool: JSON lines, plain or .gz")
    made.add_argument("--out", type=Path, help="the settings file (standard output)")
    made.add_argument("--models", nargs="+", help="which models (all that answered every question)")
    made.add_argument("--difficulty", help="choose models by questions of this difficulty only")
    made.add_argument(
        "--prices", type=Path, help="YAML: dollars a call by model; without it costs are unknown"
    )
    made.set_defaults(do=recorded_pool)


def ended(read: argparse.Namespace, command: list[str]) -> int:
    """Do what was asked, and the exit code."""
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job starts with it ignored
    try:
        read.do(read, command)
    except KeyboardInterrupt:
        print("Stopped. What was answered is kept; the same command goes on from here.", file=sys.stderr)  # noqa: T201
        return 130
    except PodiumError as exc:
        print(exc.message, file=sys.stderr)  # noqa: T201
        return 2
    except OSError as exc:
        said = f"Stopped: {exc}. What was answered is kept; mend it, and the same command goes on from here."
        print(said, file=sys.stderr)  # noqa: T201
        return 1
    return 0


def recorded_pool(read: argparse.Namespace, command: list[str]) -> None:
    """`podium recorded-pool`."""
    from evaluation.recorded_pool import read_prices, settings_of, written

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
    from evaluation import report
    from evaluation.console import Terminal

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


def _questions(read: argparse.Namespace) -> tuple[list[Any], list[Any], int]:
    """To judge by, to learn from, and how many were left out of the latter because they are among the former."""
    from evaluation.sources import load_all

    questions = load_all(read.questions, read.count, read.seed)
    seed = read.seed + 1 if read.train_seed is None else read.train_seed
    training = load_all(read.train, read.train_count, seed) if read.train else []
    judged_by = {question.text for question in questions}
    kept = [question for question in training if question.text not in judged_by]
    if training and not kept:
        raise EvaluationError("Every --train question is also among --questions; name others to learn from.")
    return questions, kept, len(training) - len(kept)


async def _evaluated(
    read: argparse.Namespace, questions: list[Any], training: list[Any], show: Any
) -> dict[str, Any]:
    from evaluation.asking import Caps, EngineAsker
    from evaluation.asking_url import UrlAsker
    from evaluation.figures import comparisons, row
    from evaluation.results import ResultLog
    from evaluation.run import Evaluation, Order
    from evaluation.statistics import RESAMPLES
    from evaluation.strategies import expanded, make
    from serving.settings import load

    caps = Caps(
        read.max_steps, read.rounds, read.max_output_tokens, read.max_tokens, read.max_cost_usd, read.deadline_s,
        read.temperature,
    )  # fmt: skip
    order = Order(questions, training, caps, read.seed, read.concurrency, read.strategy_usd)
    asker = (
        EngineAsker(load(read.settings)) if read.settings else await UrlAsker.connected(read.url, read.model)
    )
    strategies = []
    try:
        names = expanded(read.strategies, asker, learns=bool(training))
        strategies = make(names, asker, lambda path: EngineAsker(load(path)))
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
        "warnings": _warnings(asker.provenance, bool(read.url), rows),
        "caps": {name: value if value is None else str(value) for name, value in asdict(caps).items()},
        "rows": rows,
        "comparisons": comparisons(done.results, read.seed),
        "resamples": RESAMPLES,
    }


SAID = {
    "replayed": "Replayed: {names} say what real models once answered; no model was asked, and latencies mean nothing.",
    "synthetic": "Synthetic: {names} are programs with declared skills, error rates and prices, not models.",
    "scripted": "Scripted: {names} say what they were told to say; their answers mean nothing.",
    "program": "{names} are programs and no models.",
}


def _warnings(provenance: Any, by_url: bool, rows: list[dict[str, Any]]) -> list[str]:
    """What a reader must know before the figures."""
    said = [
        text.format(names=", ".join(name for name, kind in provenance.items() if kind == each))
        for each, text in SAID.items()
        if each in provenance.values()
    ]
    if by_url:
        said.append(
            "Asked over HTTP: the server does not say whether its workers are models; see its settings."
        )
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


def _usd(text: str) -> Decimal:
    try:
        amount = Decimal(text)
    except InvalidOperation as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of dollars") from exc
    if not amount.is_finite() or amount <= 0:
        raise argparse.ArgumentTypeError(f"{text} US$ is not above 0")
    return amount
