"""The synthetic skills (`evaluation.synthetic`) as a question source. Reports mark them as synthetic."""

from evaluation import EvaluationError
from evaluation.questions import Question
from evaluation.spec import Spec


def questions(spec: Spec, count: int | None, seed: int) -> list[Question]:
    from evaluation.sources import DEFAULT_COUNT

    spec.allow_only()
    if spec.detail:
        raise EvaluationError(
            f"skills does not accept {spec.detail!r}. Use `skills`, and set --count and --seed."
        )
    try:
        from evaluation.synthetic.questions import questions as generate
    except ImportError as exc:
        raise EvaluationError(f"The synthetic questions cannot be imported: {exc}.") from exc
    return generate(seed=seed, count=count or DEFAULT_COUNT)
