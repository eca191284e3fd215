"""The synthetic skills (`evaluation.synthetic`) as a source; reports say that they are synthetic."""

from evaluation.errors import EvaluationError
from evaluation.questions import Question
from evaluation.spec import Spec


def questions(spec: Spec, count: int | None, seed: int) -> list[Question]:
    """See `evaluation.sources.Source`."""
    from evaluation.sources import DEFAULT_COUNT

    spec.allow_only()
    if spec.detail:
        raise EvaluationError(f"skills takes no {spec.detail!r}; write `skills` and use --count and --seed.")
    try:
        from evaluation.synthetic.questions import questions as generate
    except ImportError as exc:
        raise EvaluationError(f"The synthetic questions cannot be imported: {exc}.") from exc
    return generate(seed=seed, count=count or DEFAULT_COUNT)
