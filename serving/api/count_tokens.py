"""`POST /v1/messages/count_tokens`: estimate of a prompt's tokens. Calls no model and costs nothing."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from serving.api.authentication import caller_of
from serving.api.dialects.messages.dialect import MessagesDialect
from serving.api.dialects.read_body import body_in_turn, check_marks
from serving.api.resolve import check_name
from serving.api.respond import success
from serving.sessions.service import Service

DIALECT = MessagesDialect()


async def count_tokens(request: Request) -> Response:
    """Estimate the input tokens of a prompt. The exact number depends on the workers that the plan will
    choose.
    """
    caller = caller_of(request)
    service: Service = request.app.state.service
    prompt = DIALECT.parse_prompt(await body_in_turn(request))
    check_marks(prompt.conversation, prompt.tools.tools)
    check_name(prompt.model, service.pool, caller.policies)
    return success({"input_tokens": prompt.input_token_estimate})


router = APIRouter()
router.add_route("/v1/messages/count_tokens", count_tokens, methods=["POST"])
