"""`podium recorded-pool`: write settings in which each worker replays one model of a recorded pool.

Recorded pools contain no costs. The user can declare a price in US dollars per call for each model. Without
it, the model's costs are unknown.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, TypeAdapter, ValidationError
from typer import Argument, Option

from conductor.errors import PodiumError
from evaluation import EvaluationError
from evaluation.recordings import complete_models, read_recordings
from podium.command_line.program import CommandError, Program
from serving.settings.faults import read_yaml_file

Price = Annotated[float, Field(ge=0, strict=True)]
HEAD = """\
# Replayed: recorded answers of real models, from {path}. No model is called.
# Workers reject steps that read other steps, except `vote`, which is a program.
# Costs per call are declared, not measured.
"""


main = Program("podium recorded-pool")


@main.command(epilog="Example: podium recorded-pool build/recorded.jsonl.gz --out build/replay.yaml")
def write(
    path: Annotated[Path, Argument(help="recorded pool, as JSON lines, plain or gzipped")],
    out: Annotated[Path | None, Option(help="settings file to write", show_default="standard output")] = None,
    models: Annotated[
        list[str] | None,
        Option(
            metavar="MODEL...",
            help="models to replay",
            show_default="all models that answered every question",
        ),
    ] = None,
    difficulty: Annotated[
        str | None, Option(help="only consider questions of this difficulty when models are chosen")
    ] = None,
    prices: Annotated[
        Path | None, Option(help="YAML file with US dollars per call, by model", show_default="unknown costs")
    ] = None,
) -> int:
    """Write settings in which every worker replays one model of a recorded pool."""
    try:
        place = str(path.resolve())
        usd = read_prices(prices) if prices else None
        text = to_yaml(replay_settings(place, models, usd, difficulty), place)
    except PodiumError as exc:
        raise CommandError(exc.message, 2) from exc
    if out is None:
        sys.stdout.write(text)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    return 0


def replay_settings(
    path: str,
    models: Sequence[str] | None = None,
    usd_per_call: Mapping[str, float] | None = None,
    difficulty: str | None = None,
) -> dict[str, Any]:
    """Return the content of a settings file. Without `models`, those that answered every question (of
    `difficulty`) are replayed.
    """
    recordings = read_recordings(path)
    relevant = {key: each for key, each in recordings.items() if difficulty in (None, each.difficulty)}
    chosen = list(models) if models is not None else complete_models(relevant)
    if not chosen:
        raise EvaluationError(f"No model in {path} answered every question. Choose models with --models.")
    prices = usd_per_call or {}
    unknown = [model for model in prices if not any(model in each.models for each in recordings.values())]
    if unknown:
        raise EvaluationError(f"The prices name the model {unknown[0]!r}, which {path} does not have.")
    workers: list[dict[str, Any]] = [
        {
            "name": model.partition("_")[2] or model,
            "kind": "python",
            "factory": "evaluation.workers.replay:Replay",
            "options": {"path": path, "model": model}
            | ({"usd_per_call": prices[model]} if model in prices else {}),
            "card": f"{model}, replayed: gives its recorded answer. Cannot read other steps.",
            "max_concurrency": 1024,
        }
        for model in chosen
    ]
    vote = {
        "name": "vote",
        "kind": "python",
        "factory": "evaluation.workers.majority:Majority",
        "price": {"input_usd_per_mtok": 0, "output_usd_per_mtok": 0},
        "card": "A program that gives the answer most of the steps it reads give. Not for questions.",
        "max_concurrency": 1024,
    }
    return {"workers": [*workers, vote]}


def read_prices(path: Path) -> dict[str, float]:
    """Return US dollars per call by model, from YAML or JSON."""
    content, _ = read_yaml_file(path, "price file")
    try:
        return TypeAdapter(dict[str, Price]).validate_python(content)
    except ValidationError as exc:
        raise EvaluationError(
            f"{path} must have one line per model, such as `openai_o3-mini: 0.01` (US dollars per call)."
        ) from exc


def to_yaml(settings: dict[str, Any], path: str) -> str:
    return HEAD.format(path=path) + yaml.safe_dump(settings, sort_keys=False, width=120)
