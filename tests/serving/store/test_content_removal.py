"""Every text field of records and events is either removed with the run's content or known to be a name."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from conductor.model.value import Value
from conductor.run.events import Event
from conductor.run.record import Record
from serving.store.content import EMPTY, LENGTHS

FACTS = "Failure.facts"
"""Field whose texts `serving/redaction/failures.py` removes."""
NAMES = {
    "Account": "key_id team_id",
    "Attempt": "worker error deployment",
    "CallQueued": "worker",
    "CallResult": "worker model inner_run deployment span",
    "CallSite": "run",
    "Failure": "code",
    "Permit": "workers max_effort",
    "PlanRecord": "worker",
    "PlanStarted": "worker",
    "PromptCache": "retention mode ttl conversation",
    "Record": "id workers owner trace_id cached_from",
    "ResultsGiven": "owner",
    "RunResumed": "owner",
    "Sampling": "effort",
    "Step": "worker",
    "StepFirstToken": "served_by",
    "StepRecord": "worker served_by",
    "Task": "model workers exclude_workers",
    "TokenBias": "token",
    "ToolCall": "id name namespace",
    "WireOptions": "verbosity",
}
"""Text fields that are kept: names, ids and words of the API."""


def removed(kind: type[Value]) -> set[str]:
    return {*EMPTY.get(kind, {}), *LENGTHS.get(kind, ())}


def parts(hint: Any) -> Iterator[Any]:
    """Yield the types in a hint, without literals."""
    if get_origin(hint) is Literal:
        return
    args = get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint)
    if args:
        for each in args:
            yield from parts(each)
    else:
        yield hint


def hints_that_stay(kind: type[Value]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {name: hints[name] for name in kind.__struct_fields__ if name not in removed(kind)}


def reachable(*kinds: type[Value]) -> set[type[Value]]:
    classes, new = set[type[Value]](), set(kinds)
    while new:
        classes |= new
        inside = (each for kind in new for hint in hints_that_stay(kind).values() for each in parts(hint))
        new = {each for each in inside if isinstance(each, type) and issubclass(each, Value)} - classes
    return classes


KINDS = reachable(Record, *get_args(Event))


def test_every_text_that_is_not_removed_is_a_name() -> None:
    stay = {
        f"{kind.__name__}.{name}"
        for kind in KINDS
        for name, hint in hints_that_stay(kind).items()
        if not {str, Any, object}.isdisjoint(parts(hint))
    }
    names = {f"{kind}.{name}" for kind, listed in NAMES.items() for name in listed.split()}
    assert stay - {FACTS} == names


def test_every_removed_field_exists() -> None:
    for kind in {*EMPTY, *LENGTHS}:
        assert kind in KINDS
        assert removed(kind) <= {*kind.__struct_fields__}
        assert not EMPTY.get(kind, {}).keys() & {*LENGTHS.get(kind, ())}
