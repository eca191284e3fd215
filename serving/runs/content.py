"""What is kept of a run's texts: nothing where its permit says so, else all but secrets and, where it says
so, personal data.

Between the runs and every store, so that none of them is given more than it may keep; and between a run under
way and whoever looks at it.
"""

from typing import TypeVar

from msgspec.structs import replace

from conductor.model.terms import Permit
from conductor.run.event_log import Journal
from conductor.run.events import (
    AnswerDelta,
    Event,
    RunCancelled,
    RunFailed,
    RunFinished,
    StepRestarted,
    WorkDelta,
)
from conductor.run.fold import after
from conductor.run.record import Record, RunRecords
from serving.redaction.personal import redactor_of
from serving.redaction.secrets import Redactor, StreamRedactor
from serving.redaction.texts import KnownTexts, map_texts
from serving.runs.numbers import event_numbers, record_numbers, without_content

T = TypeVar("T")


def kept_part(records: RunRecords) -> RunRecords:
    """`records` as they may be kept."""
    permit = records.record.task.permit
    if not permit.stores:
        return without_content(records)
    redact = redactor_of(permit)
    inner = {id: map_texts(record, redact) for id, record in records.inner.items()}
    return replace(records, record=map_texts(records.record, redact), inner=inner)


class ContentJournal:
    """Passes on to `journal` what may be kept of one run and of the runs inside it.

    Args:
        permit: the run's.
        journal: a store's.
        known: the run's texts that were looked through.
    """

    def __init__(self, permit: Permit, journal: Journal, known: KnownTexts | None = None) -> None:
        self._permit, self._journal, self._known = permit, journal, known
        self._redact = redactor_of(permit)
        self._records = dict[str, tuple[Record, Record]]()
        """By id: the newest record, and what may be kept of it; the same one where nothing had to be taken out."""
        self._work = dict[tuple[int, int | None], tuple[StreamRedactor, StreamRedactor]]()
        self._texts = dict[str, tuple[StreamRedactor, StreamRedactor]]()

    def note(self, record: Record, seq: int, event: Event) -> None:
        """A `conductor.run.event_log.Journal`. A store writes the texts of a record where it is told of it for
        the first time; after that, and with a piece of the answer, its numbers alone.
        """
        stores = self._permit.stores
        if isinstance(event, AnswerDelta):
            if stores:
                kept = self._fold(record, event, event)  # its text is not in the record
                if record.parent is None:
                    self._note_piece(kept, seq, event)
            return
        if isinstance(event, WorkDelta):
            if stores and record.parent is None:
                self._note_work(record, seq, event)
            return
        if isinstance(event, RunFinished | RunFailed | RunCancelled):
            self._flush(record, seq, event.at_s)
        if isinstance(event, StepRestarted) and record.parent is None:
            self._work.pop((event.plan, event.step), None)  # what waits is none of the words that come now
            self._texts.pop(record.id, None)
        if stores:
            redacted = self._take_out(event)
            self._journal(self._fold(record, event, redacted), seq, redacted)
            return
        if record.id not in self._records:
            self._records[record.id] = record, record_numbers(record)
            record = self._records[record.id][1]
        self._journal(record, seq, event_numbers(event))

    def kept(self, records: RunRecords) -> RunRecords:
        """Return what may be kept of the run that this was told of. No text is redacted twice: the record is made of the
        events, and those were redacted.
        """
        if not self._permit.stores:
            return without_content(records)
        redact = redactor_of(self._permit)
        record = self._kept(records.record, redact)
        inner = {id: self._kept(each, redact) for id, each in records.inner.items()}
        is_same = record is records.record and all(each is records.inner[id] for id, each in inner.items())
        return records if is_same else replace(records, record=record, inner=inner)

    def _kept(self, record: Record, redact: Redactor) -> Record:
        whole, kept = self._records.get(record.id, (None, record))
        return kept if whole is record else map_texts(record, redact)

    def _fold(self, record: Record, event: Event, redacted: Event) -> Record:
        """Return what may be kept of `record`, whose newest event is `event`. Until something is taken out of an event, that
        is the record itself.
        """
        before, kept_before = self._records.get(record.id, (None, None))
        if kept_before is None:
            kept = self._take_out(record)
        elif before is kept_before and redacted is event:
            kept = record
        else:
            kept = after(kept_before, redacted)
        self._records[record.id] = record, kept
        return kept

    def _take_out(self, value: T) -> T:
        if self._known is not None:
            self._known.learn(value)
        # Each by itself: what was looked through before says nothing of what becomes of the same text sent again.
        return map_texts(value, redactor_of(self._permit))

    def _note_piece(self, record: Record, seq: int, piece: AnswerDelta) -> None:
        if record.id not in self._texts:
            self._texts[record.id] = self._redactors()
        text, reasoning = self._texts[record.id]
        self._pass_on(record, seq, piece.at_s, text.feed(piece.text), reasoning.feed(piece.reasoning))

    def _note_work(self, record: Record, seq: int, piece: WorkDelta) -> None:
        """What waits for its end to be looked at is not told: the whole text comes when it has ended."""
        text, reasoning = self._work.setdefault((piece.plan, piece.step), self._redactors())
        told = replace(piece, text=text.feed(piece.text), reasoning=reasoning.feed(piece.reasoning))
        if told.text or told.reasoning:
            self._journal(record, seq, told)

    def _redactors(self) -> tuple[StreamRedactor, StreamRedactor]:
        boundary = "\n" if self._permit.hides_personal_data else " \t\n"
        return StreamRedactor(self._redact, boundary), StreamRedactor(self._redact, boundary)

    def _flush(self, record: Record, seq: int, at_s: float) -> None:
        """The rest of the answer, before the run ends."""
        if record.id in self._texts:
            text, reasoning = self._texts.pop(record.id)
            self._pass_on(record, seq, at_s, text.flush(), reasoning.flush())

    def _pass_on(self, record: Record, seq: int, at_s: float, text: str, reasoning: str) -> None:
        if text or reasoning:
            self._journal(record, seq, AnswerDelta(at_s, text, reasoning))
