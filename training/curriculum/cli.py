"""`podium curriculum`: show training requests, and measure a conductor on held-out ones.

Exit codes: 0: done; 1: a model or the settings cannot be loaded; 130: stopped.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from conductor.plan.grammars import SUBTASK_CHARS
from conductor.plan.prompts import Prompts
from program.options import count as count_of
from serving.settings.settings import SettingsError
from serving.settings.settings import load as load_settings
from training.curriculum.questions import RequestQuestion, lesson, request_questions

ABOUT = "Show the requests that a conductor is trained on, and measure a conductor on held-out ones."
COLUMNS = ("requests", "parsed", "one_step", "workers", "right", "about", "empty")


def main(argv: Sequence[str] | None = None) -> int:
    """Show or measure, and return the exit code."""
    options, console = parser().parse_args(argv), Console()
    try:
        questions = request_questions(options.seed, options.count, options.side)
        if options.verb == "show":
            for question in questions:
                show(console, question)
            return 0
        measure(options, console, questions)
    except SettingsError as exc:
        print(exc.message, file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    parser = argparse.ArgumentParser(
        prog="podium curriculum", description=ABOUT, epilog="example: podium curriculum show --count 3"
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    show_verb = verbs.add_parser("show", help="print requests, each with its team and its best plan")
    measure_verb = verbs.add_parser("measure", help="judge a conductor's plans for held-out requests")
    for verb, count, side in ((show_verb, 5, "train"), (measure_verb, 400, "held_out")):
        verb.add_argument(
            "--count", type=count_of, default=count, help="number of requests (default: %(default)s)"
        )
        verb.add_argument(
            "--seed", default="measured", help="seed of the random requests (default: %(default)s)"
        )
        verb.add_argument(
            "--side",
            choices=("train", "held_out"),
            default=side,
            help="which requests to use (default: %(default)s)",
        )
    add = measure_verb.add_argument
    add(
        "--model",
        action="append",
        metavar="NAME=FOLDER",
        default=[],
        help="a conductor to measure; may be repeated",
    )
    add("--settings", default="cluster/local.yaml", help="settings with the prompts (default: %(default)s)")
    add("--out", type=Path, help="write the figures and all plans to this JSON file")
    return parser


def show(console: Console, question: RequestQuestion) -> None:
    """Print a request, its team and its best plan."""
    console.rule(f"{question.request.kind}: {', '.join(part.domain for part in question.request.parts)}")
    for number, mate in enumerate(question.team.mates):
        price = f" (${mate.price.output_usd_per_mtok:f})" if question.team.shows_facts else ""
        console.print(f"  {number}: {mate.card}{price}", highlight=False, markup=False)
    for turn in question.request.turns:
        console.print(f"\n> {turn}", highlight=False, markup=False, style="bold")
    for step in lesson(question)[0]:
        console.print(json.dumps(step, ensure_ascii=False), highlight=False, markup=False, style="green")


def measure(options: argparse.Namespace, console: Console, questions: list[RequestQuestion]) -> None:
    """Print each conductor's figures, next to those of random plans.

    Raises:
        SettingsError: a model or the settings cannot be loaded.
    """
    from serving.cpu_features import computes_bfloat16  # imports torch, which `show` does not need
    from training.config import ModelConfig
    from training.curriculum.measure import figures, random_plans, write_plans
    from training.models import model_for, tokenizer_for

    settings = load_settings(options.settings)
    prompts = Prompts(**settings.prompts.model_dump(exclude_none=True))
    subtask_chars = settings.conductor.subtask_chars if settings.conductor else SUBTASK_CHARS
    plans = {"random": random_plans(questions)}
    for option in options.model:
        name, _, folder = option.rpartition("=")
        # The type that an engine on this CPU uses.
        config = ModelConfig(path=folder, dtype="bfloat16" if computes_bfloat16() else "float32")
        tokenizer: Any = tokenizer_for(config, ())
        model: Any = model_for(config, tokenizer, 0).eval()
        plans[name or Path(folder).name] = write_plans(model, tokenizer, questions, prompts, subtask_chars)
    results = {name: figures(questions, texts) for name, texts in plans.items()}
    for group in next(iter(results.values())):
        console.print(_table(group, results))
    if options.out:
        rows = [
            {
                "kind": each.request.kind,
                "turns": each.request.turns,
                "cards": [m.card for m in each.team.mates],
            }
            | {"plans": {name: texts[number] for name, texts in plans.items()}}
            for number, each in enumerate(questions)
        ]
        options.out.write_text(json.dumps({"figures": results, "plans": rows}, indent=1, ensure_ascii=False))


def _table(group: str, results: dict[str, Any]) -> Table:
    table = Table(
        "model", "kind", *(name.replace("_", " ") for name in COLUMNS), title=f"SYNTHETIC requests: {group}"
    )
    for name, figures in results.items():
        for kind, row in figures.get(group, {}).items():
            shares = [
                f"{row[column]:.3f}" if column != "requests" else f"{row[column]:.0f}" for column in COLUMNS
            ]
            table.add_row(name, kind.replace("_", " "), *shares)
        table.add_section()
    return table
