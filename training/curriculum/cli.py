"""`podium curriculum`: show training requests, and measure a conductor on held-out ones.

Exit codes: 0 if done; 1 if a model or the settings cannot be loaded; 130 if stopped.
"""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.table import Table
from typer import Option

from conductor.plan.grammars import SUBTASK_CHARS
from conductor.plan.prompts import Prompts
from podium.command_line.options import parse_count
from podium.command_line.program import CommandError, Program
from podium.command_line.terminal import console, table
from serving.cpu_features import computes_bfloat16
from serving.settings.settings import SettingsError
from serving.settings.settings import load as load_settings
from training.curriculum.questions import RequestQuestion, lesson, request_questions

COLUMNS = ("requests", "parsed", "one_step", "workers", "right", "about", "empty")


EXAMPLE = "Example: podium curriculum show --count 3"
Side = Literal["train", "held_out"]
Count = Annotated[int, Option(parser=parse_count, help="number of requests")]
Seed = Annotated[str, Option(help="seed for drawing the requests")]
main = Program(
    "podium curriculum",
    help="Show the requests on which a conductor is trained, and measure conductors on held-out requests.",
    epilog=EXAMPLE,
)


@main.command("show", epilog=EXAMPLE)
def show_requests(
    count: Count = 5,
    seed: Seed = "measured",
    side: Annotated[Side, Option(help="training requests or held-out requests")] = "train",
) -> int:
    """Print requests, each with its team and its best plan."""
    with _errors():
        for question in request_questions(seed, count, side):
            show(Console(), question)
    return 0


@main.command("measure", epilog="Example: podium curriculum measure --model mine=build/training/mine/final")
def measure_conductors(
    count: Count = 400,
    seed: Seed = "measured",
    side: Annotated[Side, Option(help="training requests or held-out requests")] = "held_out",
    model: Annotated[
        list[str] | None, Option(metavar="NAME=FOLDER", help="conductor to measure; repeatable")
    ] = None,
    settings: Annotated[
        str, Option(help="settings file with the prompts of the conductor")
    ] = "cluster/local.yaml",
    out: Annotated[Path | None, Option(help="JSON file for the figures and all plans")] = None,
) -> int:
    """Measure conductors by their plans for held-out requests, next to random plans."""
    with _errors():
        measure(console(), request_questions(seed, count, side), model or [], settings, out)
    return 0


@contextmanager
def _errors() -> Generator[None]:
    """Turn an error in the block, or its interruption, into a CommandError."""
    try:
        yield
    except SettingsError as exc:
        raise CommandError(exc.message) from exc
    except KeyboardInterrupt:
        raise CommandError("Stopped.", 130) from None


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


def measure(
    console: Console, questions: list[RequestQuestion], models: list[str], settings: str, out: Path | None
) -> None:
    """Measure each conductor and print its figures, next to those of random plans."""
    from training.config import ModelConfig
    from training.curriculum.measure import figures, random_plans, write_plans
    from training.models import model_for, tokenizer_for  # imports torch, which `show` does not need

    loaded = load_settings(settings)
    prompts = Prompts(**loaded.prompts.model_dump(exclude_none=True))
    subtask_chars = loaded.conductor.subtask_chars if loaded.conductor else SUBTASK_CHARS
    plans = {"random": random_plans(questions)}
    for each in models:
        name, _, folder = each.rpartition("=")
        # The type that an engine on this CPU uses.
        config = ModelConfig(path=folder, dtype="bfloat16" if computes_bfloat16() else "float32")
        tokenizer: Any = tokenizer_for(config, ())
        model: Any = model_for(config, tokenizer, 0).eval()
        plans[name or Path(folder).name] = write_plans(model, tokenizer, questions, prompts, subtask_chars)
    results = {name: figures(questions, texts) for name, texts in plans.items()}
    for group in next(iter(results.values())):
        console.print(_table(group, results))
    if out:
        rows = [
            {
                "kind": each.request.kind,
                "turns": each.request.turns,
                "cards": [m.card for m in each.team.mates],
            }
            | {"plans": {name: texts[number] for name, texts in plans.items()}}
            for number, each in enumerate(questions)
        ]
        out.write_text(json.dumps({"figures": results, "plans": rows}, indent=1, ensure_ascii=False))


def _table(group: str, results: dict[str, Any]) -> Table:
    columns = [name.replace("_", " ") for name in COLUMNS]
    rows = table("model", "kind", right=columns, title=f"SYNTHETIC requests: {group}")
    for name, figures in results.items():
        for kind, row in figures.get(group, {}).items():
            shares = [
                f"{row[column]:.3f}" if column != "requests" else f"{row[column]:.0f}" for column in COLUMNS
            ]
            rows.add_row(name, kind.replace("_", " "), *shares)
    return rows
