"""The part of a run that may be stored or shown.

The run's permit decides whether its texts are stored. If they are, secrets are always redacted, and personal data
if the permit requires it. All data passes through this module on its way from a run to a store or to the
clients that watch the run.

Otherwise the texts are removed, and the numbers and names remain. Lists show them with the beginning of the question,
and they are stored longer than the texts.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from conductor.model.call import Sampling
from conductor.model.failure import Attempt, Failure
from conductor.model.messages import NO_TOOLS, Message, ToolCall
from conductor.model.operation import PromptCache
from conductor.model.reply import CallResult
from conductor.model.terms import Permit
from conductor.model.value import Value
from conductor.plan.plan import Step
from conductor.run.event_log import Journal
from conductor.run.events import (
    AnswerDelta,
    CallQueued,
    Event,
    PlanEnded,
    PlanStarted,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunSuspended,
    StepRestarted,
    StepStarted,
    WorkDelta,
)
from conductor.run.fold import after
from conductor.run.plan_record import PlanRecord, StepRecord
from conductor.run.record import Record, RunRecords
from conductor.run.task import Task
from conductor.run.turns import ClientReply, Segment, StepTurn
from serving.redaction.failures import facts_without_words
from serving.redaction.secrets import Redactor, StreamRedactor
from serving.redaction.texts import KnownTexts, map_texts, redactor_of

T = TypeVar("T")
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
    ClientReply: {"results": (), "said": (), "tools": None, "echo": {}},
    PlanRecord: {"prompt": ()},
    PlanStarted: {"prompt": ()},
    PromptCache: {"key": ""},  # only calls need it, and only runs with stored texts continue elsewhere
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


def kept_part(records: RunRecords) -> RunRecords:
    """Return the records in the form in which they may be stored: redacted, or without texts."""
    permit = records.record.task.permit
    if not permit.stores:
        return without_content(records)
    redact = redactor_of(permit)
    inner = {id: map_texts(record, redact) for id, record in records.inner.items()}
    return replace(records, record=map_texts(records.record, redact), inner=inner)


def kept_question(task: Task) -> str:
    """Return the beginning of the newest question in the form in which it may be stored, or ""."""
    if not task.permit.stores:
        return ""
    return map_texts(newest_question(task), redactor_of(task.permit))[:QUESTION_CHARS]


class ContentJournal:
    """Journal that redacts the events of a run, and of nested runs, for the store's journal."""

    def __init__(self, permit: Permit, journal: Journal, run_texts: KnownTexts | None = None) -> None:
        self._permit, self._journal, self._run_texts = permit, journal, run_texts
        self._redact = redactor_of(permit)
        self._records = dict[str, tuple[Record, Record]]()
        """Newest record and its redacted form, by run id. Both are the same object if nothing was redacted.
        """
        self._work = dict[tuple[int, int | None], tuple[StreamRedactor, StreamRedactor]]()
        self._texts = dict[str, tuple[StreamRedactor, StreamRedactor]]()

    def note(self, record: Record, seq: int, event: Event) -> None:
        """Redact an event and pass it on, as a `Journal`. A store writes the whole record first, and then
        only its numbers.
        """
        stores = self._permit.stores
        if isinstance(event, AnswerDelta):
            if stores:
                self._note_piece(record, seq, event)
            return
        if isinstance(event, WorkDelta):
            if stores and record.parent is None:
                self._note_work(record, seq, event)
            return
        if isinstance(event, RunFinished | RunFailed | RunCancelled):
            self._flush(record, seq, event.at_s)
        if isinstance(event, StepRestarted) and record.parent is None:
            self._work.pop(
                (event.plan, event.step), None
            )  # the pending text belongs to the discarded attempt
            self._texts.pop(record.id, None)
        if stores:
            redacted = self._take_out(event)
            self._journal(self._fold(record, event, redacted), seq, redacted)
            return
        if record.id not in self._records:
            self._records[record.id] = record, record_numbers(record)
            record = self._records[record.id][1]
        self._journal(record, seq, event_numbers(event))

    def storable(self, records: RunRecords) -> RunRecords:
        """Return the records in the form in which they may be stored. A record whose events were redacted one by
        one is not redacted again.
        """
        if not self._permit.stores:
            return without_content(records)
        redact = redactor_of(self._permit)
        record = self._storable(records.record, redact)
        inner = {id: self._storable(each, redact) for id, each in records.inner.items()}
        is_same = record is records.record and all(each is records.inner[id] for id, each in inner.items())
        return records if is_same else replace(records, record=record, inner=inner)

    def _storable(self, record: Record, redact: Redactor) -> Record:
        whole, redacted_record = self._records.get(record.id, (None, record))
        return redacted_record if whole is record else map_texts(record, redact)

    def _fold(self, record: Record, event: Event, redacted: Event) -> Record:
        """Return the redacted `record` after `event`: itself as long as redaction has changed no event."""
        before, redacted_before = self._records.get(record.id, (None, None))
        if redacted_before is None:
            redacted_record = self._take_out(record)
        elif before is redacted_before and redacted is event:
            redacted_record = record
        else:
            redacted_record = after(redacted_before, redacted)
        self._records[record.id] = record, redacted_record
        return redacted_record

    def _take_out(self, value: T) -> T:
        if self._run_texts is not None:
            self._run_texts.learn(value)
        # Use a new redactor each time, because the result for a text must not depend on earlier texts.
        return map_texts(value, redactor_of(self._permit))

    def _note_piece(self, record: Record, seq: int, piece: AnswerDelta) -> None:
        whole, redacted_record = self._records.get(record.id, (None, record))
        if whole is not record:
            redacted_record = self._fold(
                record, piece, piece
            )  # the record does not contain the streamed text
        if record.parent is not None:
            return
        if record.id not in self._texts:
            self._texts[record.id] = self._redactors()
        text, reasoning = self._texts[record.id]
        new_text = text.feed(piece.text) if piece.text else ""
        new_reasoning = reasoning.feed(piece.reasoning) if piece.reasoning else ""
        self._pass_on(redacted_record, seq, piece.at_s, new_text, new_reasoning)

    def _note_work(self, record: Record, seq: int, piece: WorkDelta) -> None:
        """Pass on what can be redacted of a step's text. The event at its end contains the whole text."""
        text, reasoning = self._work.setdefault((piece.plan, piece.step), self._redactors())
        redacted = replace(piece, text=text.feed(piece.text), reasoning=reasoning.feed(piece.reasoning))
        if redacted.text or redacted.reasoning:
            self._journal(record, seq, redacted)

    def _redactors(self) -> tuple[StreamRedactor, StreamRedactor]:
        boundary = "\n" if self._permit.hides_personal_data else " \t\n"
        redact = partial(map_texts, change=self._redact)  # finds answers that are already redacted
        return StreamRedactor(redact, boundary), StreamRedactor(redact, boundary)

    def _flush(self, record: Record, seq: int, at_s: float) -> None:
        """Pass on the end of the answer that is not redacted yet, before the run ends."""
        if record.id in self._texts:
            text, reasoning = self._texts.pop(record.id)
            self._pass_on(record, seq, at_s, text.flush(), reasoning.flush())

    def _pass_on(self, record: Record, seq: int, at_s: float, text: str, reasoning: str) -> None:
        if text or reasoning:
            self._journal(record, seq, AnswerDelta(at_s, text, reasoning))


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
            if isinstance(inner, (tuple, Value)) and (new_inner := _numbers(inner)) is not inner:
                fields[name] = new_inner
    return replace(value, **fields) if fields else value


def _length(text: str) -> str:
    return f"… [{len(text)} characters]" if text else ""
