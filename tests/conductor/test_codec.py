"""Records and events round-trip through JSON: `load(dump(x)) == x`."""

import json
from decimal import Decimal
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor import errors
from conductor.errors import Reason
from conductor.model.call import AnswerFormat
from conductor.model.failure import Failure
from conductor.model.messages import Image, Message, Native, Text, Tool, ToolCall, ToolResult
from conductor.run.codec import UnreadableRecord, dump, load
from conductor.run.events import Event
from conductor.run.plan_record import PlanRecord, StepRecord
from conductor.run.record import VERSION, Record, RunRecords
from conductor.run.task import Task
from conductor.run.turns import ClientReply

TEXT = st.text(st.characters(), max_size=12)
"""Lone surrogates included: a model may write them."""
CODES = sorted(
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.PodiumError)
)
st.register_type_strategy(str, TEXT)
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
st.register_type_strategy(Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=6))
st.register_type_strategy(object, st.none())
st.register_type_strategy(
    Failure,
    st.builds(
        Failure,
        code=st.sampled_from(CODES),
        facts=st.dictionaries(TEXT, st.one_of(TEXT, st.integers(), st.booleans()), max_size=2),
        attempts=st.just(()),
    ),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
OBJECTS = st.none() | st.dictionaries(TEXT, JSON, max_size=2)
st.register_type_strategy(Native, st.builds(Native, payload=JSON))
st.register_type_strategy(Tool, st.builds(Tool, parameters=OBJECTS, format=OBJECTS))
st.register_type_strategy(AnswerFormat, st.builds(AnswerFormat, schema=OBJECTS))
ECHO = st.dictionaries(TEXT, JSON, max_size=2)
st.register_type_strategy(Task, st.builds(Task, echo=ECHO))
st.register_type_strategy(Message, st.builds(Message, thoughts=ECHO))
st.register_type_strategy(ClientReply, st.builds(ClientReply, echo=ECHO))
STEPS = st.lists(st.builds(StepRecord), max_size=2).map(tuple)
PLANS = st.lists(st.builds(PlanRecord, steps=STEPS), max_size=2).map(tuple)
RECORDS = st.builds(Record, plans=PLANS, version=st.just(VERSION))
EVENTS: tuple[Any, ...] = get_args(Event)


def through_json(kind: Any, value: Any) -> Any:
    return load(kind, json.loads(json.dumps(dump(value))))


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_event_round_trips(kind: type[Any], data: st.DataObject) -> None:
    event = data.draw(st.from_type(kind))
    assert through_json(Event, event) == event


@given(record=RECORDS)
def test_every_record_round_trips(record: Record) -> None:
    assert through_json(Record, record) == record


@given(record=RECORDS, inner=st.lists(RECORDS, max_size=2))
def test_a_run_round_trips_with_its_inner_runs(record: Record, inner: list[Record]) -> None:
    records = RunRecords(record, {each.id: each for each in inner})
    assert through_json(RunRecords, records) == records


def test_an_older_record_loads_with_the_default_of_a_newer_field() -> None:
    older = dump(Record("wf_1", Task(()), 0.0))
    assert set(older) == {"type", "version", "id", "task", "created"}, "other defaults are left out"
    assert load(Record, older) == Record("wf_1", Task(()), 0.0)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"version": VERSION + 1}, "version"),
        ({"version": "2"}, "version"),
        ({"version": None}, "version"),
        ({"version": True}, "version"),
        ({"type": "Task"}, "type"),
        ({"task": {"type": "Record", "conversation": []}}, "task.type"),
        ({"colour": "red"}, "colour"),
        ({"created": "noon"}, "created"),
        ({"plans": {}}, "plans"),
        ({"plans": [{"index": 0, "round": 0, "source": "nobody", "started_s": 0.0}]}, "plans.0.source"),
        ({"failure": {"type": "Failure", "message": "x"}}, "failure"),
        ({"task": {"conversation": [], "budget": {"max_cost_usd": "much"}}}, "task.budget.max_cost_usd"),
        ({"status": "asleep"}, "status"),
    ],
)  # fmt: skip
def test_an_unreadable_record_names_the_faulty_field(change: dict[str, Any], place: str) -> None:
    with pytest.raises(UnreadableRecord) as caught:
        load(Record, dump(Record("wf_1", Task(()), 0.0)) | change)
    assert place in str(caught.value)


def test_a_failure_is_converted_back_to_its_error() -> None:
    error = errors.InvalidPlan("Step 1 reads step 3.", reason=Reason.READS_FORWARD, step=1, detail="inside")
    again = through_json(Failure, Failure.of(error)).to_error()
    assert (type(again), again.message, vars(again)) == (errors.InvalidPlan, error.message, vars(error))


class OutOfCredit(errors.WorkerRefused):
    """Error class that Podium does not know, as a custom worker may raise it."""


def test_a_custom_error_is_stored_as_its_nearest_known_class() -> None:
    failure = Failure.of(OutOfCredit("Pay first.", worker="a"))
    assert (failure.code, failure.facts) == ("WorkerRefused", {"worker": "a"})
    assert isinstance(Event, UnionType)


class PatientBusy(errors.WorkerBusy):
    retry_after_s = 30.0


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (errors.WorkerRefused("No.", reason="overload"), {"reason": "overload"}),
        (PatientBusy("Wait."), {"retry_after_s": 30.0}),
        (errors.WorkerBusy("Wait.", retry_after_s=Decimal(120)), {"retry_after_s": 120.0}),
        (errors.WorkerRefused("No.", cost_usd=0.01, usage="many", attempts=3, detail=ValueError("x")), {}),
    ],
)  # fmt: skip
def test_any_error_of_a_custom_worker_round_trips(error: errors.PodiumError, facts: dict[str, Any]) -> None:
    failure = Failure.of(error)
    assert failure.facts == facts
    assert through_json(Failure, failure) == failure
    assert failure.to_error().message == error.message


def test_a_version_is_always_written_and_checked_in_nested_records_too() -> None:
    record = Record("wf_1", Task(()), 0.0)
    assert dump(record)["version"] == VERSION
    newer = dump(RunRecords(record))
    newer["record"]["version"] = VERSION + 1
    with pytest.raises(UnreadableRecord, match=r"record\.version"):
        load(RunRecords, newer)


def test_a_record_with_an_early_call_in_the_old_form_still_loads() -> None:
    plan = PlanRecord(0, 0, "conductor", 0.0)
    shape = dump(plan) | {
        "guess": {"type": "GuessRecord", "worker": "a", "started_s": 0.1, "outcome": "kept"}
    }
    assert load(PlanRecord, shape) == plan


def test_cache_marks_round_trip_although_equality_ignores_them() -> None:
    parts = (Text("a", "1h"), Image("data:", cache="5m"), ToolCall("1", "f", "{}", cache="12h"))
    message = Message("user", (*parts, ToolResult("1", (Text("b", "30m"),), cache="ephemeral")))
    unmarked = Message(
        "user", (Text("a"), Image("data:"), ToolCall("1", "f", "{}"), ToolResult("1", (Text("b"),)))
    )
    again = through_json(Message, message)
    assert again == message == unmarked
    assert [part.cache for part in again.all_parts] == ["1h", "5m", "12h", "ephemeral", "30m"]


def test_records_of_the_first_release_round_trip_unchanged() -> None:
    kinds = {"event": Event, "record": Record}
    for line in (Path(__file__).parent / "written_before.jsonl").read_text().splitlines():
        ((name, shape),) = json.loads(line).items()
        assert dump(load(kinds[name], shape)) == shape
