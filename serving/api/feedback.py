"""`POST /v1/workflows/{id}/feedback`: feedback on the answer of a run."""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from conductor.errors import BadTask, NotAllowed, UnknownName, quote
from serving.accounts.caller import Caller
from serving.api.authentication import caller_of
from serving.api.dialects.read_body import body_in_turn, read_body
from serving.api.request import NameText
from serving.api.respond import success
from serving.database.clock import now_us
from serving.redaction.texts import redactor_of
from serving.sessions.service import Service
from serving.store.feedback import Feedback
from serving.store.store import RunInfo

router = APIRouter()
MOST_LABELS, LABEL_CHARS, COMMENT_CHARS, EXPECTED_CHARS = 20, 60, 4_000, 20_000
Json = dict[str, Any]


class FeedbackBody(BaseModel):
    """Feedback on a run. Set at least one field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    score: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="Quality of the answer, from 0 (worst) to 1 (best)."
    )
    labels: list[Annotated[NameText, Field(min_length=1, max_length=LABEL_CHARS)]] = Field(
        default=[],
        max_length=MOST_LABELS,
        description="Labels of your choice, such as `wrong` or `too long`.",
    )
    comment: str = Field(default="", max_length=COMMENT_CHARS)
    expected: str = Field(
        default="",
        max_length=EXPECTED_CHARS,
        description="The correct answer. With it, the question can be used for training.",
    )


@router.post("/v1/workflows/{id}/feedback")
async def give_feedback(request: Request, id: str) -> Response:
    """Give feedback on the answer of a run that your team started. It replaces earlier feedback from the same
    key.

    Comments and other texts require a policy that allows storing texts. Secrets are removed from them, and
    they are deleted together with the texts of the run. `GET /v1/workflows/{id}` returns the feedback in the
    field `feedback`.
    """
    service: Service = request.app.state.service
    caller = caller_of(request)
    body = read_body(FeedbackBody, await body_in_turn(request))
    info = await service.info(id, caller)
    if info is None:
        raise no_run(id)
    if not caller.owns(info.account):
        message = "This run belongs to another team. Only that team can give feedback on it."
        raise NotAllowed(message, param="id")
    feedback = _to_feedback(id, info, caller, body)
    await service.store.give_feedback(feedback)
    return success({"id": id, "object": "workflow.feedback", **feedback_json(feedback)})


def no_run(id: str) -> UnknownName:
    """Return the error for a run that is not stored, or that the caller may not see."""
    return UnknownName(f"Run {quote(id)} not found. GET /v1/workflows lists your runs.", param="id")


def feedback_json(feedback: Feedback) -> Json:
    return {
        "key_id": feedback.key_id or None,
        "created": feedback.made_us // 1_000_000,
        "score": feedback.score,
        "labels": list(feedback.labels),
        "comment": feedback.comment,
        "expected": feedback.expected,
    }


def _to_feedback(id: str, info: RunInfo, caller: Caller, body: FeedbackBody) -> Feedback:
    """Return the feedback as stored: redacted, not empty, and without texts if those may not be stored."""
    if body.score is None and not (body.labels or body.comment or body.expected):
        raise BadTask("Set at least one of score, labels, comment and expected.", param="score")
    text = "comment" if body.comment else "expected" if body.expected else None
    permit = info.permit
    if text and not (permit.stores and caller.policies.both.store_content):
        message = f"{text}: the policy of this key or its team does not allow storing text. Send only score and labels."
        raise NotAllowed(message, param=text)
    if text and not info.has_content:
        raise BadTask(f"{text}: the texts of this run are no longer stored. Send only score and labels.", param=text)  # fmt: skip
    hides = permit.hides_personal_data or caller.policies.both.redact_personal_data
    redact = redactor_of(replace(permit, hides_personal_data=hides))

    def clean(text: str) -> str:  # databases reject lone surrogates, and PostgreSQL also NUL
        return redact(text).replace("\0", " ").encode(errors="replace").decode()

    labels = tuple(dict.fromkeys(map(clean, body.labels)))
    key_id = caller.account.key_id
    return Feedback(id, key_id, now_us(), body.score, labels, clean(body.comment), clean(body.expected))
