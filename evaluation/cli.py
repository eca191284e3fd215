"""`podium`, and `python -m evaluation`, which is `podium eval`.

Exit codes: 0 done; 1 stopped by something outside, such as a full disk; 2 it cannot be done as it was asked for; 130 stopped with
Ctrl-C. After 1 and 130 the same command goes on where it was.
"""

import argparse
import math
import signal
import sys
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from conductor.errors import PodiumError
from evaluation.errors import HOW_TO_INSTALL
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
    made = argparse.ArgumentParser(prog="podium eval", **_layout())
    evaluating(made)
    return ended(made.parse_args(given), ["podium", "eval", *given])


def recorded_pool(arguments: Sequence[str]) -> int:
    """`podium recorded-pool`."""
    return podium(["recorded-pool", *arguments])


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
    made.add_argument(
        "--model",
        help="with --url: the conductor to ask (the server's first); with --settings: a name in `models`, whose workers are the pool",
    )
    made.add_argument(
        "--questions", nargs="+", required=True, metavar="SET", help="see below; several are put together"
    )
    made.add_argument("--strategies", nargs="+", default=["usual"], metavar="NAME", help="see below (usual)")
    made.add_argument(
        "--train", nargs="+", default=[], metavar="SET", help="question sets to learn from and choose by"
    )
    made.add_argument("--count", type=count, help="questions of each set (all of a fixed set; 100 of others)")
    made.add_argument("--train-count", type=count, help="the same for --train")
    made.add_argument("--seed", type=_seed, default=0, help="of questions, samples and lots (%(default)s)")
    made.add_argument("--train-seed", type=_seed, help="of generated training questions (--seed + 1)")
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
    made.add_argument("--deadline-s", type=_seconds, default=300.0, help="of one run (%(default)s)")
    made.add_argument(
        "--temperature", type=_temperature, help="of workers, where a strategy has none of its own"
    )
    made.set_defaults(do="evaluate")


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
    made.set_defaults(do="recorded_pool")


def ended(read: argparse.Namespace, written: list[str]) -> int:
    """Do what was asked.

    Args:
        read: the command line.
        written: the same as it was written, for the report.

    Returns:
        The exit code.
    """
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job starts with it ignored
    try:
        from evaluation import command  # numpy, plots and graders: not for `--help`

        getattr(command, read.do)(read, written)
    except KeyboardInterrupt:
        print("Stopped. What was answered is kept; the same command goes on from here.", file=sys.stderr)  # noqa: T201
        return 130
    except ModuleNotFoundError as exc:
        lacks = f"podium needs the package {exc.name}, which is not installed. {HOW_TO_INSTALL}"
        print(lacks, file=sys.stderr)  # noqa: T201
        return 2
    except PodiumError as exc:
        print(exc.message, file=sys.stderr)  # noqa: T201
        return 2
    except OSError as exc:
        said = f"Stopped: {exc}. What was answered is kept; mend it, and the same command goes on from here."
        print(said, file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 0")
    return int(text)


def _seconds(text: str) -> float:
    if not 0 < (seconds := _number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return seconds


def _temperature(text: str) -> float:
    if not 0 <= (temperature := _number(text)) <= 2:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 2")
    return temperature


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from exc


def _usd(text: str) -> Decimal:
    try:
        amount = Decimal(text)
    except InvalidOperation as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of dollars") from exc
    if not amount.is_finite() or amount <= 0:
        raise argparse.ArgumentTypeError(f"{text} US$ is not above 0")
    return amount
