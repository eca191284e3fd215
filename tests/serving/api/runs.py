"""Generated runs for tests of dialects: events, the record they fold into, and the encoded stream."""

import json
from collections.abc import Sequence

from hypothesis import strategies as st

from conductor.errors import BudgetExceeded, DeadlineExceeded, PodiumError, WorkerUnavailable
from conductor.model.failure import Failure
from conductor.model.messages import Message, PendingCall, ToolCall
from conductor.model.reply import CallResult, FinishReason
from conductor.model.usage import Usage
from conductor.plan.plan import Step
from conductor.run.event_log import EventLog
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
    StepFinished,
    StepFirstToken,
    StepPlanned,
    StepStarted,
    StepWaits,
)
from conductor.run.fold import after
from conductor.run.record import Record
from conductor.run.run import Run
from conductor.run.task import Task
from serving.api.dialect import Dialect
from serving.api.request import ApiRequest

QUESTION = (Message.of("user", "Why is the sky blue?"),)


def call_id(number: int) -> str:
    """Return a valid call id without signing it."""
    return f"call_{number}"


def record_of(*events: Event) -> Record:
    record = Record("wf_1", Task(QUESTION, model="mini"), created=1.0)
    for event in events:
        record = after(record, event)
    return record


def encode(dialect: Dialect, request: ApiRequest, *events: Event) -> bytes:
    """Return the whole stream of a run with these events."""
    log = EventLog(record_of())
    encoder = dialect.encoder(Run(log), request, call_id)
    stream = encoder.begin()
    for event in events:
        log.record = after(log.record, event)
        stream += encoder.encode(event)
    return stream


def suspension(*calls: ToolCall) -> list[Event]:
    """Return the events of a run whose only step calls these tools."""
    return [*_planned(1), *_start(0), *_waits(0, "", Usage(10, 2), calls)]


def _planned(n_steps: int) -> list[Event]:
    steps = [
        StepPlanned(0.1, 0, index, Step("a", f"Part {index}.", tuple(range(index))))
        for index in range(n_steps)
    ]
    return [PlanStarted(0.0, 0, 0, "conductor", "conductor", QUESTION), *steps, PlanEnded(0.2, 0)]


def _start(step: int) -> list[Event]:
    return [StepStarted(0.3, 0, step, QUESTION), StepFirstToken(0.4, 0, step, "a")]


def _finish(step: int, text: str, usage: Usage, finish: FinishReason) -> Event:
    return StepFinished(0.8, 0, step, CallResult(text, "a", "a-1", usage, None, finish))


def _waits(step: int, text: str, usage: Usage, calls: Sequence[ToolCall]) -> list[Event]:
    pending = tuple(PendingCall(number, call) for number, call in enumerate(calls))
    result = CallResult(text, "a", "a-1", usage, None, FinishReason.TOOL_CALLS, tool_calls=tuple(calls))
    return [StepWaits(0.8, 0, step, result, pending), RunSuspended(0.9, pending, text)]


words = st.text(min_size=1, max_size=12)
numbers = st.integers(-(2**63), 2**64 - 1)
"""Most JSON parsers read larger integers as floats (RFC 8259, section 6), and so does our encoder."""
arguments = st.dictionaries(words, words | numbers | st.none(), max_size=3).map(json.dumps)
tool_calls = st.builds(
    ToolCall, st.just(""), st.from_regex(r"[a-zA-Z_-]{1,20}", fullmatch=True), arguments | st.just("")
)
usages = st.builds(
    lambda fresh, cached, cache_write, out, thought: Usage(
        fresh + cached + cache_write, out + thought, cached, thought, cache_write
    ),
    *[st.integers(0, 10_000)] * 5,
)
pieces = st.builds(AnswerDelta, st.just(0.5), words, st.just("")) | st.builds(
    AnswerDelta, st.just(0.5), st.just(""), words
)
failures = st.sampled_from(
    [
        PodiumError("Odd."),
        WorkerUnavailable("Gone.", worker="a"),
        DeadlineExceeded("Late.", deadline_s=1.0),
        BudgetExceeded("Spent."),
    ]
).map(Failure.of)


@st.composite
def runs(draw: st.DrawFn) -> list[Event]:
    """Draw the events of a run, with the terminal event last."""
    n_steps = draw(st.integers(1, 3))
    events = _planned(n_steps)
    for step in range(n_steps - 1):
        events += [*_start(step), _finish(step, "Said.", draw(usages), FinishReason.STOP)]
    if draw(st.booleans()):
        events.append(CallQueued(0.3, 0, n_steps - 1, "a", "a cold start"))
    deltas = draw(st.lists(pieces, max_size=6))
    events += [*_start(n_steps - 1), *deltas]
    text = "".join(delta.text for delta in deltas)
    match draw(st.sampled_from(["finished", "suspended", "failed", "cancelled"])):
        case "finished":
            finish = draw(
                st.sampled_from([FinishReason.STOP, FinishReason.LENGTH, FinishReason.CONTENT_FILTER])
            )
            events += [_finish(n_steps - 1, text, draw(usages), finish), RunFinished(1.0, text, finish)]
        case "suspended":
            calls = draw(st.lists(tool_calls, min_size=1, max_size=5))
            events += _waits(n_steps - 1, text, draw(usages), calls)
        case "failed":
            events.append(RunFailed(1.0, draw(failures)))
        case _:
            events.append(RunCancelled(1.0))
    return events
