"""Encoding of answers and errors in Chat Completions, whole or streamed."""

import time
from collections.abc import Sequence
from typing import Any

from conductor.errors import PodiumError
from conductor.model.failure import Failure
from conductor.model.messages import PendingCall
from conductor.model.operation import Likely, TokenLogprob
from conductor.model.reply import FinishReason
from conductor.run.events import (
    AnswerDelta,
    CallQueued,
    Event,
    PlanEnded,
    RunCancelled,
    RunDetached,
    RunFailed,
    RunFinished,
    RunSuspended,
    StepAborted,
    StepFinished,
    StepFirstToken,
    StepPlanned,
    StepReused,
)
from conductor.run.record import RunRecords
from conductor.run.run import Run
from serving.api import event_json, record_json
from serving.api.dialect import CallId, cancellation_error, interruption_error
from serving.api.dialects.chat.tools import call_json
from serving.api.encode import dumps
from serving.api.error_json import caller_failure, error_json
from serving.api.record_json import model_name, summary, usage
from serving.api.request import ApiRequest, tier_of


def logprobs_json(tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    """Return `logprobs` of a choice, or None if there are none."""
    if not tokens:
        return None
    return {"content": content_json(tokens), "refusal": None}


def content_json(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Return the log probabilities of each token."""
    return [_likely(each) | {"top_logprobs": [*map(_likely, each.top)]} for each in tokens]


def _likely(each: TokenLogprob | Likely) -> dict[str, Any]:
    raw = each.token.encode("utf-8", "surrogatepass")
    return {"token": each.token, "logprob": each.logprob, "bytes": list(raw)}


Json = dict[str, Any]


def completion(records: RunRecords, call_id: CallId, *, trace: bool) -> Json:
    """Return the `chat.completion` for a run that has finished or waits for tool results."""
    record = records.record
    turns = record.new_turns if record.status == "waiting" else ()
    answering = turns[-1].result if turns else record.answering
    reasoning = answering.reasoning if answering else ""
    calls = [call_json(call_id(pending.number), pending.call) for pending in record.pending]
    content = record.shown or (None if calls else "")
    message: Json = {"role": "assistant", "content": content, "refusal": None, "annotations": []}
    if calls:
        message["tool_calls"] = calls
    if reasoning:
        message["reasoning_content"] = reasoning
    choice: Json = {
        "index": 0,
        "message": message,
        "logprobs": logprobs_json(record.answering.logprobs if record.answering else ()),
        "finish_reason": "tool_calls" if calls else record.finish.value if record.finish else "stop",
    }
    return {
        "id": chat_id(record.id),
        "object": "chat.completion",
        "created": int(record.created),
        "model": model_name(record),
        "choices": [choice],
        "service_tier": tier_of(record.task.priority),
        "usage": usage(record),
        "podium": summary(record, records.inner, trace=trace),
    }


def chat_id(workflow_id: str) -> str:
    """Return OpenAI's id for the answer of a run."""
    return "chatcmpl-" + workflow_id.removeprefix("wf_")


def chat_error_body(error: PodiumError | Failure, workflow_id: str | None = None) -> dict[str, Any]:
    """Return the body of a failed response, which is also the last event of a failed stream."""
    return {"error": error_json(error, workflow_id)}


DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": still working\n\n"


class ChatEncoder:
    """Encodes events as `chat.completion.chunk`s. It does not use Pydantic, because a chunk is only a few
    dictionaries.
    """

    def __init__(self, run: Run, request: ApiRequest, call_id: CallId) -> None:
        self._run, self._podium = run, request.podium
        self._call_id = call_id
        self._answering = False
        self._with_usage = request.include_usage
        record = run.record
        self.head: Json = {
            "id": chat_id(record.id),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": record.model,
        }

    def begin(self) -> bytes:
        """Return the first chunk, which has the role."""
        return self._delta({"role": "assistant", "content": ""})

    def encode(self, event: Event) -> bytes:
        """Return the chunks for `event`, often none."""
        match event:
            case StepFirstToken():  # the worker that answers is known now
                self.head["model"] = record_json.model_name(self._run.record)
                return self._progress(event)
            case AnswerDelta(text=text, reasoning=reasoning, logprobs=logprobs):
                self._answering = True
                delta: Json = {"content": text} if text else {}
                return self._delta(delta | ({"reasoning_content": reasoning} if reasoning else {}), logprobs)
            case RunFinished(finish=finish):
                return self.last_chunks(_last_choice(finish.value))
            case RunSuspended(calls=calls):
                return self._calls(calls) + self.last_chunks(_last_choice(FinishReason.TOOL_CALLS.value))
            case RunFailed(failure=failure):
                return (
                    _data(chat_error_body(caller_failure(failure, self._run.record), self._run.record.id))
                    + DONE
                )
            case RunCancelled():
                return _data(chat_error_body(cancellation_error(), self._run.record.id)) + DONE
            case RunDetached():
                return _data(chat_error_body(interruption_error(), self._run.record.id)) + DONE
            case _:
                return self._progress(event)

    def heartbeat(self) -> bytes:
        return HEARTBEAT

    def _progress(self, event: Event) -> bytes:
        if self._podium.progress == "off" or (progress := event_json.progress(event)) is None:
            return b""
        if self._podium.progress == "events":
            return self.chunk({"choices": [], "podium": progress})
        line = "" if self._answering else in_words(event)
        return self._delta({"reasoning_content": line}) if line else b""

    def _calls(self, calls: tuple[PendingCall, ...]) -> bytes:
        """Return one chunk per call, with its complete arguments."""
        calls_json = [call_json(self._call_id(pending.number), pending.call) for pending in calls]
        return b"".join(
            self._delta({"tool_calls": [{"index": index} | call]}) for index, call in enumerate(calls_json)
        )

    def last_chunks(self, choice: Json) -> bytes:
        """Return the end of the stream: the last chunk of the choice, the summary of the run, and the usage
        if requested.
        """
        record = self._run.record
        last = self.chunk(
            {
                "choices": [choice],
                "podium": record_json.summary(record, self._run.records.inner, trace=self._podium.trace),
            }
        )
        if not self._with_usage:
            return last + DONE
        return last + _data(self.head | {"choices": [], "usage": record_json.usage(record)}) + DONE

    def _delta(self, delta: Json, logprobs: tuple[TokenLogprob, ...] = ()) -> bytes:
        likely = logprobs_json(logprobs)
        return self.chunk(
            {"choices": [{"index": 0, "delta": delta, "logprobs": likely, "finish_reason": None}]}
        )

    def chunk(self, rest: Json) -> bytes:
        """Return one chunk that contains `rest`."""
        return _data(self.head | rest | ({"usage": None} if self._with_usage else {}))


def _last_choice(reason: str) -> Json:
    return {"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}


def in_words(event: Event) -> str:
    """Return progress as a line for people, or "" if the event is not worth one."""
    match event:
        case StepPlanned(step=step, planned=planned):
            reads = (
                f" (reads {', '.join(str(read + 1) for read in planned.access)})" if planned.access else ""
            )
            needs = f" ({planned.needs})" if planned.needs else ""
            return f"Step {step + 1}, {planned.worker}{reads}: {planned.subtask or 'answer the question'}{needs}\n"
        case PlanEnded(rejection=rejection, why=why) if rejection or why:
            return f"{why}\n"
        case CallQueued(worker=worker, why=why):
            return f"{worker}: {why}\n"
        case StepFinished(step=step) | StepReused(step=step):
            return f"Step {step + 1} is done.\n"
        case StepAborted(step=step, outcome=outcome):
            return f"Step {step + 1} ended: {outcome.value.replace('_', ' ')}.\n"
        case _:
            return ""


def _data(value: Json) -> bytes:
    return b"data: " + dumps(value) + b"\n\n"
