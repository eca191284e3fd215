"""Data sets of the Hugging Face hub: `hub:openai/gsm8k?config=main&split=test&grader=numeric`.

Only this module imports `datasets`. Options name the fields as for `jsonl`.
"""
# The types of datasets are partial.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false

from typing import Any

from evaluation import EvaluationError
from evaluation.questions import Question
from evaluation.sources.rows import FIELDS, questions_from_rows
from evaluation.spec import Spec


def questions(spec: Spec, count: int | None, seed: int) -> list[Question]:
    spec.allow_only("config", "split", *FIELDS)
    if not (name := spec.detail):
        raise EvaluationError("hub needs the name of a data set. Use hub:OWNER/NAME.")
    try:
        import httpx
        from datasets import load_dataset
    except ImportError as exc:
        raise EvaluationError(
            "Questions from the hub need the package datasets. In a checkout, run `make setup-learning`. "
            "Elsewhere, run `pip install datasets`."
        ) from exc
    try:
        rows: Any = load_dataset(name, spec.options.get("config"), split=spec.options.get("split", "test"))
    except (OSError, ValueError, RuntimeError, httpx.HTTPError) as exc:
        raise EvaluationError(
            f"hub:{name} cannot be loaded: {type(exc).__name__}: {exc}. Check the name, config and split, "
            "and the variables HF_ENDPOINT and HF_HUB_OFFLINE. Without access to a hub, use jsonl:PATH."
        ) from exc
    return questions_from_rows(
        spec, ((f"{name}[{index}]", dict(row)) for index, row in enumerate(rows)), name
    )
