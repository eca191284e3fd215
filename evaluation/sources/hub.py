"""Data sets of the Hugging Face hub, where there is one: `hub:openai/gsm8k?config=main&split=test&grader=numeric`.

`datasets` is imported only here. Fields are named as for `jsonl`.
"""

from evaluation.errors import EvaluationError
from evaluation.spec import Named, text
from evaluation.questions import Question
from evaluation.sources.rows import FIELDS, asked


def questions(named: Named, count: int | None, seed: int) -> list[Question]:
    """See `evaluation.sources.Source`."""
    named.only("config", "split", *FIELDS)
    if not named.detail:
        raise EvaluationError("hub needs a data set's name: hub:OWNER/NAME.")
    split = named.value("split", "test", text)
    try:
        import httpx
        from datasets import load_dataset
    except ImportError as exc:
        raise EvaluationError(
            "hub questions need the package datasets: in a checkout, run `make setup-learning`; elsewhere, pip install datasets."
        ) from exc
    try:
        rows = load_dataset(named.detail, named.options.get("config"), split=split)
    except (OSError, ValueError, RuntimeError, httpx.HTTPError) as exc:
        raise EvaluationError(
            f"hub:{named.detail} cannot be loaded: {type(exc).__name__}: {exc}. Is the hub reachable (HF_ENDPOINT, "
            "HF_HUB_OFFLINE), and are name, config and split right? Without a hub use jsonl:PATH."
        ) from exc
    return asked(named, ((f"{named.detail}[{index}]", row) for index, row in enumerate(rows)), named.detail)
