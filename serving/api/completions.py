"""Routes that start runs: one path for each dialect, and `POST /v1/plans`."""

from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from conductor.errors import BadTask, quote
from serving.accounts.caller import Caller
from serving.accounts.rates import check_possible
from serving.api.attachments import attach
from serving.api.authentication import caller_of
from serving.api.choices import ChoicesResponse, Siblings
from serving.api.conversation import with_conversation
from serving.api.dialect import Dialect, Dialects
from serving.api.dialects.read_body import body_in_turn, check_marks
from serving.api.plans import PlanResponse
from serving.api.request import ApiRequest, check_size
from serving.api.run_opener import Keeping, keeping_of
from serving.api.run_response import RunResponse
from serving.api.tool_results import find_tool_answer
from serving.edge.checks import too_large, too_much_text
from serving.sessions.service import Service

IS_BATCH = "podium.is_batch"
"""Key in an ASGI scope. True for a line of a batch, whose answer can wait."""
BETA_HEADERS = ("anthropic-beta", "openai-beta")
"""Headers that ask for beta features. They are ignored, and the record lists them."""
ANSWER = "Answer a conversation, as a stream if `stream` is true."
PLAN = "Return the plan for this request and its worst-case cost. Only the conductor is called and billed."
MOST_RUNS = 128
"""Maximum number of answers to one request."""


def build_router(dialects: Dialects) -> APIRouter:
    """Return the routes that start runs: one for each dialect, and `POST /v1/plans`."""
    router = APIRouter()
    # Plain ASGI routes: FastAPI's own would resolve dependencies and a response model on every request, and
    # there are none.
    for path, dialect in dialects.by_path.items():
        router.routes.append(Route(path, Answers(RunResponse, dialect, ANSWER), methods=["POST"]))
    plans = Answers(PlanResponse, dialects.default, PLAN)
    router.routes.append(Route("/v1/plans", plans, methods=["POST"]))
    return router


class Answers:
    """ASGI route that starts a run.

    Args:
        about: description for the OpenAPI document.
    """

    def __init__(self, response: "type[RunResponse]", dialect: Dialect, about: str) -> None:
        self._response, self._dialect, self.__doc__ = response, dialect, about

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await _respond(Request(scope, receive, send), self._response, self._dialect)
        await response(scope, receive, send)


async def _respond(request: Request, response: type[RunResponse], dialect: Dialect) -> ASGIApp:
    service: Service = request.app.state.service
    caller = caller_of(request)
    api_request = await _parse(request, service, dialect)
    completed = await dialect.complete(api_request, service, caller)
    if request.scope.get(IS_BATCH):
        completed = replace(completed, priority="batch")
    check_size(completed.conversation, "messages")
    limits = service.settings().limits
    parsed = completed
    if completed.names_files:
        parsed = await attach(completed, caller, request.app.state.batches.store, service)
    most = limits.max_text_bytes
    # earlier turns and stored files count as text too
    if parsed is not api_request and parsed.text_chars > most:
        raise too_much_text(most)
    parsed = with_conversation(parsed, caller, service.settings().conversation)
    is_numbered = dialect.tells_again and parsed.podium.background and parsed.stream
    keeping = await keeping_of(request, caller, parsed.podium, may_change=not is_numbered)
    headers = dict(request.headers)
    choices = parsed.choices if response is RunResponse else [parsed]
    _check_rates(parsed, choices, caller)
    if len(choices) > 1:
        _check_choices(choices, keeping)
        await _check_no_run_waits(choices[0], dialect, service)
        beside = Siblings(len(choices))
        answers = [response(service, dialect, each, headers, caller, siblings=beside) for each in choices]
        return ChoicesResponse(answers)
    return response(service, dialect, parsed, headers, caller, keeping)


def _check_rates(parsed: ApiRequest, choices: list[ApiRequest], caller: Caller) -> None:
    """Check that the answers fit into the caller's limits per minute, so that they can be admitted."""
    if not caller.policies.limits_rates:
        return
    n = parsed.n if len(choices) > 1 else 1
    tokens = [each.token_estimate for each in choices[::n] for _ in range(n)]
    field = "n" if n > 1 else "prompt"
    check_possible(tokens, parsed.text_token_estimate, caller.account, caller.policies, field)


def _check_choices(choices: list[ApiRequest], keeping: Keeping | None) -> None:
    """Check that the runs of several answers end with the request, and are not too many."""
    if keeping is not None:
        message = "Several answers are not supported with podium.keep, podium.background or Idempotency-Key. Set n to 1."
        raise BadTask(message, param="n")
    if len(choices) > MOST_RUNS:
        message = f"A request may ask for at most {MOST_RUNS} answers, not {len(choices)}. Split it into several requests."
        raise BadTask(message, param="prompt")


async def _check_no_run_waits(request: ApiRequest, dialect: Dialect, service: Service) -> None:
    """Check that a request for several answers continues no waiting run, which has only one."""
    if request.has_tool_results and await find_tool_answer(request, dialect, service) is not None:
        message = (
            "n must be 1 in a request with tool results, because they continue one run, which has one answer."
        )
        raise BadTask(message, param="n")


async def _parse(request: Request, service: Service, dialect: Dialect) -> ApiRequest:
    """Parse the body that the edge has read. Check its size again: limits may have changed."""
    limits = service.settings().limits
    body = await body_in_turn(request)
    if len(body) > limits.max_body_bytes:
        raise too_large(limits.max_body_bytes)
    parsed = dialect.parse(body)
    check_marks(parsed.conversation, parsed.tools.tools)
    if len(body) > limits.max_text_bytes and parsed.text_chars > limits.max_text_bytes:
        raise too_much_text(limits.max_text_bytes)
    betas = [f"{name} {quote(value)} was ignored, because it has no effect on this server." for name in BETA_HEADERS if (value := request.headers.get(name))]  # fmt: skip
    return replace(parsed, left_out=(*parsed.left_out, *betas)) if betas else parsed
