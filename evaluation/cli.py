"""`podium eval`: compare strategies on questions with known answers.

Exit codes:

* 0: done.
* 1: an external failure, such as a full disk.
* 2: invalid options, or something that they need is missing.
* 130: interrupted with Ctrl-C.

After 1 and 130, the same command resumes the evaluation.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from conductor.errors import PodiumError
from evaluation import HOW_TO_INSTALL
from evaluation.sources import SOURCES
from evaluation.strategies import LEARNED, STRATEGIES, USUAL
from program.options import count, number, seconds, seed, usd
from program.process import restore_interrupts

temperature = number(float, "a number between 0 and 2", lambda value: 0 <= value <= 2)
EPILOG = """\
question sets:
{questions}

strategies:
{strategies}

`usual` stands for {usual}; `learned` for {learned}. docs/evaluation.md has examples, such as
  podium eval --url http://127.0.0.1:8000 --questions gsm8k
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run an evaluation and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_args(arguments)
    restore_interrupts()
    try:
        from evaluation.evaluate import evaluate  # numpy, plots and graders: not for `--help`

        evaluate(options, shlex.join(["podium", "eval", *arguments]))
    except KeyboardInterrupt:
        return _fail("Stopped. Results so far are saved; run the same command to resume.", 130)
    except ModuleNotFoundError as exc:
        return _fail(f"podium needs the package {exc.name}, which is not installed. {HOW_TO_INSTALL}", 2)
    except PodiumError as exc:
        return _fail(exc.message, 2)
    except OSError as exc:
        return _fail(
            f"Stopped: {exc}. Results so far are saved; fix the cause and run the same command to resume.", 1
        )
    return 0


def _fail(message: str, code: int) -> int:
    print(message, file=sys.stderr)  # noqa: T201
    return code


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="podium eval",
        description="Compare strategies on the same questions, pool and caps; write a report.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EPILOG.format(
            questions="\n".join(f"  {name:16}{how}" for name, (_, how) in SOURCES.items()),
            strategies="\n".join(f"  {name:18}{how}" for name, (_, how) in STRATEGIES.items()),
            usual=", ".join(USUAL),
            learned=", ".join(LEARNED),
        ),
    )
    pool = parser.add_mutually_exclusive_group(required=True)
    pool.add_argument("--settings", type=Path, help="settings YAML; this process calls its workers")
    pool.add_argument("--url", help="URL of a running Podium; set PODIUM_API_KEY if it needs a key")
    add = parser.add_argument
    add(
        "--model",
        help="with --url: the conductor to use (default: the server's first); "
        "with --settings: a name in `models`, whose workers form the pool",
    )
    add(
        "--questions",
        nargs="+",
        required=True,
        metavar="SET",
        help="question sets, see below; several are concatenated",
    )
    add(
        "--strategies",
        nargs="+",
        default=["usual"],
        metavar="NAME",
        help="strategies, see below (default: usual)",
    )
    add(
        "--train",
        nargs="+",
        default=[],
        metavar="SET",
        help="question sets for training routers and choosing workers",
    )
    add("--count", type=count, help="questions per set (default: all of a fixed set, 100 of a generated one)")
    add("--train-count", type=count, help="questions per --train set (same default)")
    add("--seed", type=seed, default=0, help="seed of questions, sampling and random choices (%(default)s)")
    add("--train-seed", type=seed, help="seed of generated training questions (default: --seed + 1)")
    add("--out", type=Path, default=Path("build/eval"), help="folder for results and report (%(default)s)")
    add("--concurrency", type=count, default=16, help="questions in flight (%(default)s)")
    add("--max-steps", type=count, default=5, help="maximum steps of a conductor's plan (%(default)s)")
    add("--rounds", type=count, default=1, help="maximum planning rounds of a conductor (%(default)s)")
    add("--max-output-tokens", type=count, help="maximum output tokens of one call")
    add("--max-tokens", type=count, help="maximum tokens of one question, over all calls")
    add("--max-cost-usd", type=usd, help="maximum cost of one question in US dollars, over all calls")
    add(
        "--strategy-usd",
        type=usd,
        help="budget of one strategy in US dollars; it starts no question beyond that",
    )
    add("--deadline-s", type=seconds, default=300.0, help="timeout of one run in seconds (%(default)s)")
    add("--temperature", type=temperature, help="temperature of workers if the strategy sets none")
    return parser


if __name__ == "__main__":
    sys.exit(main())
