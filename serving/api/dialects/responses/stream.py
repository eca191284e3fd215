"""Encoding of a run as the event stream of OpenAI's Responses, and as one object."""

from typing import Any

from conductor.model.failure import Failure
from conductor.model.messages import PendingCall, Toolset
from conductor.model.reply import FinishReason
from conductor.run.events import AnswerDelta
from conductor.run.record import RunRecords
from conductor.run.run import Run
from serving.api.dialect import CallId, Encoder, interruption_error
from serving.api.dialects.responses.items import call_item
from serving.api.dialects.responses.resource import INCOMPLETE, error_of, resource, status_of
from serving.api.dialects.responses.segments import part_of, response_id
from serving.api.dialects.responses.writer import ResponseWriter
from serving.api.event_json import plan_in_words
from serving.api.request import Podium

Json = dict[str, Any]


class ResponsesEncoder(Encoder):
    """Encodes events as OpenAI's stream of a response."""

    def __init__(self, run: Run, echo: Json, tools: Toolset, podium: Podium, call_id: CallId) -> None:
        super().__init__(run, podium, call_id)
        self._echo, self._tools = echo, tools
        self._id = response_id(run.record.id, part_of(run.record))
        self._writer = ResponseWriter(
            self._id, shows_encrypted=echo["shows_encrypted"], after=echo.get("after", -1)
        )

    def begin(self) -> bytes:
        return self._state("created", "in_progress") + self._state("in_progress", "in_progress")

    def heartbeat(self) -> bytes:
        """Send the state again, because clients ignore comments. In a background stream it has the number of
        the last event, so that replayed events keep theirs.
        """
        write = self._writer.again if self._echo["response"]["background"] else self._writer.event
        return write("response.in_progress", response=self._resource("in_progress"))

    def _answer(self, piece: AnswerDelta) -> bytes:
        thought = self._writer.think(piece.reasoning) if piece.reasoning else b""
        return thought + (self._writer.say(piece.text, piece.logprobs) if piece.text else b"")

    def _finish(self, finish: FinishReason) -> bytes:
        status = "incomplete" if finish in INCOMPLETE else "completed"
        has_message = any(item["type"] == "message" for item in self._writer.output)
        events = self._writer.close("final_answer", status)
        if not has_message and not any(item["type"] == "message" for item in self._writer.output):
            events += self._writer.say("") + self._writer.close("final_answer", status)
        return events + self._state(status, status)

    def _suspend(self, calls: tuple[PendingCall, ...]) -> bytes:
        closed = self._writer.close("commentary")
        frames = [
            self._writer.call(call_item(pending.call, self._call_id(pending.number))) for pending in calls
        ]
        return closed + b"".join(frames) + self._state("completed", "completed")

    def _fail(self, failure: Failure) -> bytes:
        error = error_of(failure, self._run.record)
        return self._writer.close("commentary", "incomplete") + self._state("failed", "failed", error)

    def _show(self, progress: Json) -> bytes:
        return self._state("in_progress", "in_progress", podium=progress)

    def _think(self, text: str) -> bytes:
        return self._writer.think(text)

    def _state(self, kind: str, status: str, error: Json | None = None, **fields: Any) -> bytes:
        return self._writer.event(
            f"response.{kind}", response=self._resource(status) | {"error": error}, **fields
        )

    def _resource(self, status: str) -> Json:
        output, trace = list(self._writer.output), self._podium.trace
        return resource(self._id, self._run.records, self._echo, self._tools, status, output, trace=trace)


def show(records: RunRecords, echo: Any, tools: Toolset, podium: Podium, call_id: CallId) -> Json:
    """Return a run's newest response in its current state. For `echo`, see `echo_of`."""
    record = records.record
    id = response_id(record.id, part_of(record))
    writer = ResponseWriter(id, shows_encrypted=echo["shows_encrypted"])
    reasoning = record.answering.reasoning if record.answering else ""
    plan = record.answering_plan
    shows_plan = podium.progress == "reasoning" and plan is not None and plan.source != "worker"
    lines = plan_in_words(plan) if shows_plan else ""
    if lines or reasoning:
        writer.think(lines + reasoning)
    status = status_of(record)
    text = record.segments[-1].text if record.status == "waiting" else record.answer
    if text or record.status == "finished":
        writer.say(text, record.answering.logprobs if record.answering else ())
        writer.close("final_answer" if record.status == "finished" else "commentary", _item_status(status))
    writer.close()
    for pending in record.pending:
        writer.call(call_item(pending.call, call_id(pending.number)))
    response = resource(id, records, echo, tools, status, writer.output, trace=podium.trace)
    if status == "failed":
        response["error"] = error_of(record.failure or interruption_error(), record)
    return response


def _item_status(status: str) -> str:
    return "incomplete" if status == "incomplete" else "completed"
