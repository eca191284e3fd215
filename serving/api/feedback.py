"""`POST /v1/workflows/{id}/feedback`: what those who asked for a run say of its answer."""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from conductor.errors import BadTask, NotAllowed, UnknownName, quote
from conductor.run.record import Account, RunRecords
from serving.accounts.caller import Caller
from serving.api.authentication import caller_of
from serving.api.dialects.read_body import read_body
from serving.api.request import NameText
from serving.api.respond import success
from serving.redaction.personal import redactor_of
from serving.runs.feedback import Feedback
from serving.runs.rows import now_us
from serving.sessions.service import Service

router = APIRouter()
MOST_LABELS, LABEL_CHARS, COMMENT_CHARS, EXPECTED_CHARS = 20, 60, 4_000, 20_000
Json = dict[str, Any]


class FeedbackBody(BaseModel):
    """What is said of a run; at least one thing of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    score: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="How good the answer is, from 0 to 1."
    )
    labels: list[Annotated[NameText, Field(min_length=1, max_length=LABEL_CHARS)]] = Field(
        default=[], max_length=MOST_LABELS, description="Words of your own, such as `wrong` or `too long`."
    )
    comment: str = Field(default="", max_length=COMMENT_CHARS)
    expected: str = Field(
        default="",
        max_length=EXPECTED_CHARS,
        description="What had been the right answer: with it the question can be trained on.",
    )


@router.post("/v1/workflows/{id}/feedback")
async def give_feedback(request: Request, id: str) -> Response:
    """Say how good a run's answer is. For the team that asked for the run; what the same key said before is replaced. Texts
    are kept where the team's policy keeps texts, as long as the run's own, without secrets. The record has it as `feedback`.
    """
    service: Service = request.app.state.service
    caller = caller_of(request)
    body = read_body(FeedbackBody, await request.body())
    run = await service.records(id, caller)
    if run is None:
        raise UnknownName(f"No run {quote(id)} is kept here; the newest are at /v1/workflows.", param="id")
    if not _made_by(caller, run.record.account):
        message = "Another team asked for this run, and only that team says how good its answer is."
        raise NotAllowed(message, param="id")
    said = _to_feedback(run, caller, body)
    await service.store.give_feedback(said)
    return success({"id": id, "object": "workflow.feedback", **feedback_json(said)})


def feedback_json(said: Feedback) -> Json:
    """As a record shows it."""
    return {
        "key_id": said.key_id or None,
        "created": said.made_us // 1_000_000,
        "score": said.score,
        "labels": list(said.labels),
        "comment": said.comment,
        "expected": said.expected,
    }


def _made_by(caller: Caller, account: Account) -> bool:
    """Whether the caller's own team asked for the run of that account; without a team, the key itself."""
    mine = caller.account
    return mine.team_id == account.team_id and (bool(mine.team_id) or mine.key_id == account.key_id)


def _to_feedback(run: RunRecords, caller: Caller, body: FeedbackBody) -> Feedback:
    """What may be kept of `body`.

    Raises:
        BadTask: it says nothing, or has texts where those of the run are gone.
        NotAllowed: it has texts, and the policy keeps none.
    """
    if body.score is None and not (body.labels or body.comment or body.expected):
        raise BadTask("Say something: score, labels, comment or expected.", param="score")
    text = "comment" if body.comment else "expected" if body.expected else None
    permit = run.record.task.permit
    if text and not (permit.stores and caller.policies.both.store_content):
        message = f"{text}: by the policy of this key or its team no text of a run is kept. Send score and labels alone."
        raise NotAllowed(message, param=text)
    if text and not run.has_content:
        raise BadTask(f"{text}: the run's texts are not kept any more. Send score and labels alone.", param=text)  # fmt: skip
    hides = permit.hides_personal_data or caller.policies.both.redact_personal_data
    redact = redactor_of(replace(permit, hides_personal_data=hides))

    def kept(text: str) -> str:  # a database takes no half characters, PostgreSQL no NUL
        return redact(text).replace("\0", " ").encode(errors="replace").decode()

    labels = tuple(dict.fromkeys(map(kept, body.labels)))
    key_id = caller.account.key_id
    return Feedback(
        run.record.id, key_id, now_us(), body.score, labels, kept(body.comment), kept(body.expected)
    )
