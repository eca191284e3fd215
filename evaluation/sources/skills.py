"""The synthetic skills (`evaluation.synthetic`), as a source: programs ask, programs can answer, and reports say so."""

from evaluation.errors import EvaluationError
from evaluation.spec import Named
from evaluation.questions import Question


def questions(named: Named, count: int | None, seed: int) -> list[Question]:
    """See `evaluation.sources.Source`."""
    from evaluation.sources import DEFAULT_COUNT

    named.only()
    if named.detail:
        raise EvaluationError(f"skills takes no {named.detail!r}; write `skills` and use --count and --seed.")
    try:
        from evaluation.synthetic.questions import questions as made
    except ImportError as exc:
        raise EvaluationError(f"The synthetic questions cannot be imported: {exc}.") from exc
    return made(seed=seed, count=count or DEFAULT_COUNT)
