"""`podium eval`: compare strategies on questions with known answers.

Exit codes: 0 done; 1 stopped by something outside, such as a full disk; 2 it cannot be done as asked; 130
stopped with Ctrl-C. After 1 and 130 the same command continues where it was.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from conductor.errors import PodiumError
from evaluation.errors import HOW_TO_INSTALL
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
    """Run an evaluation; the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_args(given)
    restore_interrupts()
    try:
        from evaluation.evaluate import evaluate  # numpy, plots and graders: not for `--help`

        evaluate(options, shlex.join(["podium", "eval", *given]))
    except KeyboardInterrupt:
        return _fail("Stopped. What was answered is kept; the same command goes on from here.", 130)
    except ModuleNotFoundError as exc:
        return _fail(f"podium needs the package {exc.name}, which is not installed. {HOW_TO_INSTALL}", 2)
    except PodiumError as exc:
        return _fail(exc.message, 2)
    except OSError as exc:
        return _fail(
            f"Stopped: {exc}. What was answered is kept; fix it, and the same command goes on from here.", 1
        )
    return 0


def _fail(message: str, code: int) -> int:
    print(message, file=sys.stderr)  # noqa: T201
    return code


def parser() -> argparse.ArgumentParser:
    """The command line."""
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
    pool.add_argument("--settings", type=Path, help="settings YAML; its workers are called from this process")
    pool.add_argument("--url", help="a running Podium; a key goes into PODIUM_API_KEY")
    add = parser.add_argument
    add(
        "--model",
        help="with --url: the conductor to ask (the server's first); "
        "with --settings: a name in `models`, whose workers are the pool",
    )
    add("--questions", nargs="+", required=True, metavar="SET", help="see below; several are put together")
    add("--strategies", nargs="+", default=["usual"], metavar="NAME", help="see below (usual)")
    add("--train", nargs="+", default=[], metavar="SET", help="question sets to learn from and choose by")
    add("--count", type=count, help="questions of each set (all of a fixed set; 100 of others)")
    add("--train-count", type=count, help="the same for --train")
    add("--seed", type=seed, default=0, help="of questions, samples and lots (%(default)s)")
    add("--train-seed", type=seed, help="of generated training questions (--seed + 1)")
    add("--out", type=Path, default=Path("build/eval"), help="folder of results and report (%(default)s)")
    add("--concurrency", type=count, default=16, help="questions in flight (%(default)s)")
    add("--max-steps", type=count, default=5, help="of a conductor's plan (%(default)s)")
    add("--rounds", type=count, default=1, help="of a conductor (%(default)s)")
    add("--max-output-tokens", type=count, help="of one call")
    add("--max-tokens", type=count, help="of one question, all calls together")
    add("--max-cost-usd", type=usd, help="likewise, in dollars")
    add("--strategy-usd", type=usd, help="a strategy that has spent this begins no further question")
    add("--deadline-s", type=seconds, default=300.0, help="of one run (%(default)s)")
    add("--temperature", type=temperature, help="of workers, where a strategy sets none")
    return parser


if __name__ == "__main__":
    sys.exit(main())
