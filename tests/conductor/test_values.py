"""Values that are shared: their equality, their encoding, and that all their parts are values too."""

import dataclasses
import inspect
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from conductor.model.call import AnswerFormat, Call, Sampling
from conductor.model.messages import Image, Message, Native, Text, Tool, ToolCall, Toolset
from conductor.model.operation import Likely, TokenLogprob, WireOptions
from conductor.model.terms import Terms
from conductor.model.usage import Usage
from conductor.model.value import DefaultingValue, Value, has_equals
from conductor.plan.plan import Step
from conductor.run.codec import decode, dump, encode, load
from conductor.run.events import Event, ResultsGiven, RunSuspended
from conductor.run.ledger import Budget
from conductor.run.plan_record import StepRecord
from conductor.run.record import Account, Record, RunRecords
from conductor.run.task import Task
from conductor.run.turns import ClientReply, Segment
from tests.conductor.test_codec import RECORDS


def classes_in(hint: Any) -> Iterator[type[Any]]:
    """Yield the classes that a field of type `hint` can hold."""
    origin = get_origin(hint)
    if origin is Annotated:
        yield from classes_in(get_args(hint)[0])
    elif origin in (Union, UnionType) or (inspect.isclass(origin) and origin is not None):
        for each in get_args(hint):
            yield from classes_in(each)
    elif inspect.isclass(hint):
        yield hint


def classes_on_record() -> set[type[Any]]:
    """Return each class of Podium that is part of a record or an event."""
    classes, waiting = set[type[Any]](), [*classes_in(Event), RunRecords, Record]
    while waiting:
        kind = waiting.pop()
        if kind in classes or not kind.__module__.startswith("conductor"):
            continue
        classes.add(kind)
        if hasattr(kind, "__struct_fields__") or dataclasses.is_dataclass(kind):
            for hint in get_type_hints(kind).values():
                waiting += classes_in(hint)
    return classes


WRITTEN = sorted(
    (kind for kind in classes_on_record() if not issubclass(kind, str)), key=lambda kind: kind.__name__
)


OWN_WORDS = {(StepRecord, "status")}
"""Fields that only hold constants of the source code, which Python interns."""


def test_all_parts_of_records_and_events_are_tested():
    assert {Record, Task, Step, Text, Usage, Budget, Account, TokenLogprob, Likely} <= set(WRITTEN)


@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: kind.__name__)
def test_every_stored_type_is_a_value_and_restores_its_defaults(kind: type[Any]):
    """Redaction searches only values. msgspec omits a default only if it is the same object."""
    assert issubclass(kind, Value)
    if any(has_equals(field) for field in fields(kind) if (kind, field.name) not in OWN_WORDS):
        assert issubclass(kind, DefaultingValue)


def other(text: str) -> str:
    return "".join(list(text))


@pytest.mark.parametrize(
    "value",
    [
        Image("data:", other("auto")),  # type: ignore[arg-type]
        ToolCall("1", "f", "{}", other("function")),  # type: ignore[arg-type]
        Sampling(options=WireOptions()),
        Segment((), usage=Usage(), cost_usd=Decimal("0.00"), at_s=float("0"), waited_s=-0.0),
        ResultsGiven(0.0, ClientReply(()), waited_s=float("0")),
        RunSuspended(0.0, (), clock=float("0")),
        AnswerFormat(name=other("answer")),
        Record(
            "wf_1",
            Task((), other("podium"), Sampling(), budget=Budget(), tools=Toolset()),
            0.0,
            account=Account(),
            lost_usd=Decimal("0.0"),
            wall_s=float("0"),
        ),
        Record("wf_1", Task(()), 0.0, account=Account()),
        Record("wf_1", Task(()), 0.0, lost_usd=Decimal("0E-6")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_fields_with_default_values_are_omitted(value: Value):
    required = [field.encode_name for field in fields(value) if field.required]
    always = ["version"] if isinstance(value, Record) else []
    assert sorted(dump(value)) == sorted(["type", *required, *always])
    if isinstance(value, Record):
        assert dump(value.task) == {"type": "Task", "conversation": []}


def test_a_value_of_another_type_than_its_default_is_written():
    assert dump(Segment((), at_s=0))["at_s"] == 0


@pytest.mark.parametrize(
    ("one", "another"),
    [
        (Text("a"), Text("a", "1h")),
        (ToolCall("1", "f", "{}"), ToolCall("1", "f", "{}", cache="5m")),
        (Step("a", "x"), Step("a", "x", needs="patience")),
        (Call(()), Call((), mark_key="k", terms=Terms(is_first_paid_call=True))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_ignored_fields_do_not_affect_equality(one: Value, another: Value):
    assert one == another
    assert hash(one) == hash(another)
    assert repr(one) != repr(another)
    assert one != Native("a", "", {})


def test_values_with_json_are_compared_with_it_and_have_a_hash():
    message = Message("user", (Text("a"),), Native("a", "", {"x": [1]}), {"reasoning": "b"})
    assert hash(message) == hash(replace(message, thoughts={}))
    assert message != replace(message, thoughts={})
    assert message != replace(message, native=Native("a", "", {"x": [2]}))
    tool = Tool("f", parameters={"type": "object"})
    assert hash(tool) == hash(replace(tool, parameters=None, cache="1h"))
    assert tool != replace(tool, parameters=None)


def test_a_value_is_immutable():
    text: Any = Text("a")
    with pytest.raises(AttributeError):
        text.text = "b"


class Words(str):
    """Subclass of `str`, as a provider's library may return."""


class Number(float):
    pass


@pytest.mark.parametrize(
    "payload",
    [
        math.inf, [-math.inf], {"a": math.nan}, None, [None, math.nan], "\ud800", {"\udc00": "\ud83d"}, 10**40,
        {"a": None, "b": 10**40}, [10**40, math.inf], Words("a"), Number(0.5), {Words("a"): Number("inf")}, {"": ""},
    ],
    ids=repr,
)  # fmt: skip
def test_json_special_values_are_encoded_as_in_the_standard_library(payload: Any):
    expected = repr(json.loads(json.dumps(payload)))
    data = encode(Native("a", "", payload))
    assert repr(json.loads(data)["payload"]) == expected
    assert repr(decode(Native, data).payload) == expected
    assert repr(load(Native, dump(Native("a", "", payload))).payload) == expected


def test_infinite_numbers_round_trip_in_their_own_field():
    likely = TokenLogprob("a", -math.inf, (Likely("b", math.inf),))
    assert decode(TokenLogprob, encode(likely)) == likely
    assert msgspec.json.encode(likely) != encode(likely), "msgspec writes null"


OLDER_NAMES = {"ClientReply": "Given"}
"""Names of classes in stored records, if they differ from the names in the code."""


def as_before(value: Any) -> Any:
    """Return `value` in the stored form, which must not change."""
    if isinstance(value, Value):
        shape: dict[str, Any] = {"type": OLDER_NAMES.get(type(value).__name__, type(value).__name__)}
        for field in fields(value):
            content = getattr(value, field.name)
            left_out = field.default if field.default is not msgspec.NODEFAULT else None
            has_default = left_out is not None or (not field.required and field.name != "version")
            if field.default_factory is dict:
                has_default, left_out = True, {}
            elif has_default and type(content) is not type(left_out):
                has_default = False
            if not has_default or content != left_out:
                shape[field.name] = as_before(content)
        return shape
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [as_before(each) for each in value]
    if isinstance(value, dict):
        return {name: as_before(each) for name, each in value.items()}
    return value


@given(st.one_of(RECORDS, *map(st.from_type, get_args(Event))))
def test_exactly_the_same_fields_are_written_as_before(value: Value):
    assert json.loads(encode(value)) == as_before(value)


@given(RECORDS)
def test_encoded_bytes_round_trip(record: Record):
    assert decode(Record, encode(record)) == record
    assert encode(decode(Record, encode(record))) == encode(record)
