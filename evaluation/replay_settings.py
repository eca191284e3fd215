"""Settings that serve a recorded pool: a replaying worker for every model, and a voter. For `podium recorded-pool`.

What a call cost was not recorded. Prices are what the user declares, dollars a call by model; without them cost is unknown.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from evaluation.errors import EvaluationError
from evaluation.recordings import models_of, read

HEAD = """\
# Replayed: real models' recorded answers, from {path}. Nothing is asked of any model.
# Steps that read other steps are refused, except by `vote`, which is a program. Costs a call are declared, not measured.
"""


def settings_of(
    path: str,
    models: Sequence[str] | None = None,
    usd_per_call: Mapping[str, float] | None = None,
    difficulty: str | None = None,
) -> dict[str, Any]:
    """A settings file's content.

    Args:
        path: of the recorded pool, as the workers are to open it.
        models: which; None: all that answered every question (of `difficulty`, where that is said).
        usd_per_call: declared, by model.
        difficulty: only counts for choosing models.

    Raises:
        EvaluationError: the pool cannot be read, no model is left, or a price is for nobody.
    """
    recorded = read(path)
    kept = {key: each for key, each in recorded.items() if difficulty in (None, each.difficulty)}
    chosen = list(models) if models is not None else models_of(kept)
    if not chosen:
        raise EvaluationError(f"{path}: no model answered every question; name the models to replay.")
    prices = usd_per_call or {}
    unknown = [model for model in prices if not any(model in each.answers for each in recorded.values())]
    if unknown:
        raise EvaluationError(f"The price of {unknown[0]!r} is for nobody; {path} has no such model.")
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
        "name": "vote", "kind": "python", "factory": "evaluation.workers.majority:Majority",
        "price": {"input_usd_per_mtok": 0, "output_usd_per_mtok": 0},
        "card": "A program that gives the answer most of the steps it reads give. Not for questions.", "max_concurrency": 1024,
    }  # fmt: skip
    return {"workers": [*workers, vote]}


def read_prices(path: Path) -> dict[str, float]:
    """Dollars a call by model, from YAML or JSON.

    Raises:
        EvaluationError: it is not there, or not a table of numbers.
    """
    try:
        held = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as exc:
        raise EvaluationError(f"The prices {path} cannot be read: {exc}.") from exc
    good = isinstance(held, dict) and all(isinstance(v, int | float) and v >= 0 for v in held.values())
    if not good:
        raise EvaluationError(f"{path}: write one line a model, `openai_o3-mini: 0.01`, dollars a call.")
    return {str(model): float(usd) for model, usd in held.items()}


def written(settings: dict[str, Any], path: str) -> str:
    """The settings file's text."""
    return HEAD.format(path=path) + yaml.safe_dump(settings, sort_keys=False, width=120)
