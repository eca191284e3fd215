"""`POST /v1/messages/count_tokens`: about how many tokens a prompt takes. Nothing is run, and nothing paid."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from serving.api.authentication import caller_of
from serving.api.dialects.messages.dialect import MessagesDialect
from serving.api.resolve import check_name
from serving.api.respond import success
from serving.sessions.service import Service

DIALECT = MessagesDialect()


async def count_tokens(request: Request) -> Response:
    """An estimate: which worker reads the prompt, and how it counts, is known when the plan is."""
    caller = caller_of(request)
    service: Service = request.app.state.service
    asked = DIALECT.parse_prompt(await request.body())
    check_name(asked.model, service.pool, caller.policies)
    return success({"input_tokens": asked.input_token_estimate})


router = APIRouter()
router.add_route("/v1/messages/count_tokens", count_tokens, methods=["POST"])
