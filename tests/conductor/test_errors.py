import inspect
import pickle

import pytest

from conductor import errors
from conductor.errors import InvalidPlan, PodiumError, Reason
from conductor.model.failure import Attempt

TREE = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, PodiumError)]
FACTS: dict[str, object] = {
    "detail": "For operators.", "every_call": True, "param": "podium.workers", "reason": Reason.READS_FORWARD, "step": 2, "worker": "alpha", "retry_after_s": 1.5,
    "spent": "$1", "held": "$2", "limit": "$3", "deadline_s": 4.0, "attempts": (Attempt("alpha", "WorkerBusy", "no", 0.1),),
}  # fmt: skip


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_error_keeps_its_facts_when_it_is_pickled(kind: type[PodiumError]) -> None:
    facts = {name: value for name, value in FACTS.items() if hasattr(kind, name)}
    error = kind("It broke; mend it.", **facts)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert copy.message == str(copy) == "It broke; mend it."
    assert {name: getattr(copy, name) for name in facts} == facts
    assert copy.retryable == error.retryable


def test_the_documented_error_tree_matches_the_classes() -> None:
    drawn: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for row in (errors.__doc__ or "").split("::", 1)[1].splitlines():
        name = row.strip("│├└─ ").split(" ")[0]
        if not name or not hasattr(errors, name):
            continue
        depth = len(row) - len(row.lstrip("│├└─ "))
        while above and above[-1][0] >= depth:
            above.pop()
        drawn[name] = above[-1][1] if above else None
        above.append((depth, name))
    bases = {kind.__name__: None if kind is PodiumError else kind.__bases__[0].__name__ for kind in TREE}
    assert drawn == bases


def test_an_error_accepts_only_its_message_by_position() -> None:
    with pytest.raises(TypeError):
        InvalidPlan("one", "two")  # type: ignore[call-arg]
