"""Removal of the texts from a run's records and events.

The numbers and names remain. Lists show them with the beginning of the question, and they are stored longer than the
texts.
"""

from collections.abc import Mapping
from typing import Any, cast

from msgspec.structs import replace

from conductor.model.call import Sampling
from conductor.model.failure import Attempt, Failure
from conductor.model.messages import NO_TOOLS, Message, ToolCall
from conductor.model.reply import CallResult
from conductor.model.value import Value
from conductor.plan.plan import Step
from conductor.run.events import (
    AnswerDelta,
    CallQueued,
    Event,
    PlanEnded,
    PlanStarted,
    RunFinished,
    RunSuspended,
    StepStarted,
    WorkDelta,
)
from conductor.run.plan_record import PlanRecord, StepRecord
from conductor.run.record import Record, RunRecords
from conductor.run.task import Task
from conductor.run.turns import Given, Segment, StepTurn
from serving.redaction.failures import facts_without_words

QUESTION_CHARS = 200
"""Number of characters of the question in lists."""
LENGTHS: Mapping[type[Value], tuple[str, ...]] = {
    Attempt: ("message",),
    CallQueued: ("why",),
    CallResult: ("output", "reasoning"),
    Failure: ("message",),
    PlanEnded: ("why",),
    PlanRecord: ("why",),
    Record: ("answer",),
    RunFinished: ("answer",),
    RunSuspended: ("text",),
    Segment: ("text",),
    Step: ("subtask", "needs"),
    StepRecord: ("subtask", "needs"),
    ToolCall: ("arguments",),
}
"""Texts that are replaced by `… [N characters]`."""
EMPTY: Mapping[type[Value], Mapping[str, Any]] = {
    AnswerDelta: {"text": "", "reasoning": "", "logprobs": ()},
    Attempt: {"detail": ""},
    CallResult: {"notes": (), "native": None, "logprobs": (), "stop_sequence": None},
    Failure: {"detail": ""},
    Given: {"results": (), "said": (), "tools": None, "echo": {}},
    PlanRecord: {"prompt": ()},
    PlanStarted: {"prompt": ()},
    Sampling: {"stop": ()},
    StepRecord: {"prompt": ()},
    StepStarted: {"prompt": ()},
    StepTurn: {"results": (), "said": ()},
    Task: {
        "conversation": (),
        "plan": None,
        "tools": NO_TOOLS,
        "answer_format": None,
        "echo": {},
        "left_out": (),  # the client chose the names of unknown fields
    },
    WorkDelta: {"text": "", "reasoning": ""},
}
"""Fields that are removed, with their values afterwards. A test checks that every other text is a name."""


def without_content(records: RunRecords) -> RunRecords:
    """Replace texts in the records of a run by `… [N characters]`, or remove them."""
    if not records.has_content:
        return records
    inner = {id: record_numbers(record) for id, record in records.inner.items()}
    return RunRecords(record_numbers(records.record), inner, has_content=False)


def for_list(records: RunRecords) -> RunRecords:
    """Return the records of a run as lists show them: without texts, but with the beginning of the question."""
    return with_question(without_content(records), question_of(records))


def with_question(records: RunRecords, question: str) -> RunRecords:
    """Return records without texts, with `question` as their conversation. "" changes nothing."""
    if not question:
        return records
    conversation = (Message.of("user", question),)
    task = replace(records.record.task, conversation=conversation)
    return replace(records, record=replace(records.record, task=task))


def question_of(records: RunRecords) -> str:
    """Return the beginning of the newest question, or "" if texts are not stored."""
    return newest_question(records.record.task)[:QUESTION_CHARS] if records.has_content else ""


def newest_question(task: Task) -> str:
    """Return the text of the newest user message that has one, or ""."""
    questions = (message.text for message in reversed(task.conversation) if message.role == "user")
    return next(filter(None, questions), "")


def event_numbers(event: Event) -> Event:
    """Return the event with numbers and names only. A part of a streamed answer becomes empty."""
    return _numbers(event)


def record_numbers(record: Record) -> Record:
    """Return the record without its texts. A text is replaced by `… [N characters]` or removed."""
    return _numbers(record)


def _numbers(value: Any) -> Any:
    """Return `value` without the texts in it and in the values inside it."""
    if isinstance(value, tuple):
        items = cast(tuple[Any, ...], value)
        mapped = tuple([_numbers(each) for each in items])
        return items if all(a is b for a, b in zip(mapped, items, strict=True)) else mapped
    if not isinstance(value, Value):
        return value
    kind = type(value)
    fields = dict(EMPTY.get(kind, {}))
    fields |= {name: _length(getattr(value, name)) for name in LENGTHS.get(kind, ())}
    if isinstance(value, Failure):
        fields["facts"] = facts_without_words(value)
    for name in kind.__struct_fields__:
        if name not in fields:
            inner = getattr(value, name)
            changed = _numbers(inner)
            if changed is not inner:
                fields[name] = changed
    return replace(value, **fields) if fields else value


def _length(text: str) -> str:
    return f"… [{len(text)} characters]" if text else ""
