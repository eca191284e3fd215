"""`podium eval`: compare strategies on questions with known answers.

Exit codes:

* 0: done.
* 1: an external failure, such as a full disk.
* 2: invalid options, or something that they need is missing.
* 130: interrupted with Ctrl-C.

After 1 and 130, the same command resumes the evaluation.
"""

import sys
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from typer import Context, Option

from conductor.errors import PodiumError
from evaluation import HOW_TO_INSTALL
from evaluation.sources import SOURCES
from evaluation.strategies import LEARNED, STRATEGIES, USUAL
from podium.command_line.options import number, parse_count, parse_seconds, parse_seed, parse_usd
from podium.command_line.process import restore_interrupts
from podium.command_line.program import CommandError, Program, UsageError

parse_temperature = number(float, "a number between 0 and 2", lambda value: 0 <= value <= 2)
EPILOG = """\
question sets:
{questions}

strategies:
{strategies}

`usual` stands for {usual}; `learned` for {learned}. docs/evaluation.md has examples, such as
  podium eval --url http://127.0.0.1:8000 --questions gsm8k
""".format(
    questions="\n".join(f"  {name:16}{how}" for name, (_, how) in SOURCES.items()),
    strategies="\n".join(f"  {name:18}{how}" for name, (_, how) in STRATEGIES.items()),
    usual=", ".join(USUAL),
    learned=", ".join(LEARNED),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """Options of `podium eval`: the strategies, the questions and the limits."""

    settings: Annotated[Path | None, Option(help="settings file, whose workers this process calls")] = None
    url: Annotated[
        str | None, Option(help="URL of a running Podium server; set PODIUM_API_KEY if it needs a key")
    ] = None
    model: Annotated[
        str | None,
        Option(
            help="with --url: the conductor to use (default: the server's first); "
            "with --settings: a name in `models`, whose workers form the pool"
        ),
    ] = None
    questions: Annotated[
        list[str],
        Option(metavar="SET...", help="question sets (listed below); the questions of all sets are used"),
    ]
    strategies: Annotated[
        list[str],
        Option(metavar="NAME...", help="strategies to compare (listed below)", show_default="usual"),
    ] = field(default_factory=lambda: ["usual"])
    train: Annotated[
        list[str],
        Option(
            metavar="SET...",
            help="question sets for training routers and choosing workers",
            show_default=False,
        ),
    ] = field(default_factory=list[str])
    count: Annotated[
        int | None,
        Option(
            parser=parse_count,
            help="maximum number of questions per set",
            show_default="all of a fixed set, 100 of a generated set",
        ),
    ] = None
    train_count: Annotated[
        int | None,
        Option(
            parser=parse_count, help="maximum number of questions per --train set (default as for --count)"
        ),
    ] = None
    seed: Annotated[int, Option(parser=parse_seed, help="seed of questions, sampling and random choices")] = 0
    train_seed: Annotated[
        int | None,
        Option(parser=parse_seed, help="seed of generated training questions", show_default="--seed + 1"),
    ] = None
    out: Annotated[Path, Option(help="folder for the results and the report")] = Path("build/eval")
    concurrency: Annotated[int, Option(parser=parse_count, help="number of concurrent questions")] = 16
    max_steps: Annotated[
        int, Option(parser=parse_count, help="maximum number of steps in a conductor's plan")
    ] = 5
    rounds: Annotated[
        int, Option(parser=parse_count, help="maximum number of planning rounds of a conductor")
    ] = 1
    max_output_tokens: Annotated[
        int | None, Option(parser=parse_count, help="maximum number of output tokens of one call")
    ] = None
    max_tokens: Annotated[
        int | None,
        Option(parser=parse_count, help="maximum number of tokens for one question, over all calls"),
    ] = None
    max_cost_usd: Annotated[
        Decimal | None,
        Option(parser=parse_usd, help="maximum cost of one question in US dollars, over all calls"),
    ] = None
    strategy_usd: Annotated[
        Decimal | None,
        Option(
            parser=parse_usd,
            help="budget of one strategy in US dollars; when it is used up, the strategy starts no more questions",
        ),
    ] = None
    deadline_s: Annotated[float, Option(parser=parse_seconds, help="timeout of one run in seconds")] = 300.0
    temperature: Annotated[
        float | None,
        Option(parser=parse_temperature, help="temperature of the workers, unless the strategy sets one"),
    ] = None


main = Program("podium eval")


@main.command(epilog=EPILOG)
def run(context: Context, options: EvalOptions) -> int:
    """Compare strategies on the same questions, with the same pool and the same limits, and write a report."""
    if (options.settings is None) == (options.url is None):
        raise UsageError("Set either --settings or --url, and not both.")
    restore_interrupts()
    try:
        from evaluation.evaluate import evaluate  # numpy, plots and graders: not for `--help`

        evaluate(options, str(context.obj))
    except KeyboardInterrupt:
        raise CommandError(
            "Stopped. Results so far are saved. Run the same command to resume.", 130
        ) from None
    except ModuleNotFoundError as exc:
        needs = f"podium eval needs the package {exc.name}, which is not installed. {HOW_TO_INSTALL}"
        raise CommandError(needs, 2) from exc
    except PodiumError as exc:
        raise CommandError(exc.message, 2) from exc
    except OSError as exc:
        remedy = "Results so far are saved. Fix the cause, and run the same command to resume."
        raise CommandError(f"Stopped: {exc}. {remedy}") from exc
    return 0


if __name__ == "__main__":
    sys.exit(main())
