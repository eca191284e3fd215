"""The routes that run something: a path for each dialect, and `POST /v1/plans`."""

from dataclasses import replace
from typing import Never

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from conductor.errors import BadTask, quote
from conductor.model.call import Call
from conductor.model.usage import total
from conductor.model.worker import PoolMember
from conductor.plan.plan import Plan
from conductor.run.record import Record, RunRecords
from conductor.run.task import worst_case
from conductor.run.team import TEAM, TeamWorker
from serving.accounts.caller import Caller
from serving.accounts.rates import check_possible, rates_of
from serving.api import record_json
from serving.api.attachments import attach
from serving.api.authentication import caller_of
from serving.api.choices import ChoicesResponse
from serving.api.dialect import Dialect, Dialects
from serving.api.earlier_runs import CallersRuns
from serving.api.files import batches_of
from serving.api.request import ApiRequest, Keeping, check_size, keeping_of
from serving.api.resolve import ResolvedTask
from serving.api.resuming import find_tool_answer
from serving.api.run_response import RunResponse
from serving.api.siblings import Siblings
from serving.edge.checks import too_large, too_much_text
from serving.sessions.service import Service

IS_BATCH = "podium.is_batch"
"""In a scope: nobody waits for the answer."""
BETA_HEADERS = ("anthropic-beta", "openai-beta")
"""They ask for what is newest, which nobody here waits for."""
ANSWER = "Answer a conversation; streaming where the request asks for a stream."
PLAN = "The plan that the same body would run, and what it may cost at worst. Only the conductor is called, and paid."
MOST_RUNS = 128
"""Answers of one request."""


def build_router(dialects: Dialects) -> APIRouter:
    """The routes that run something: one for each dialect, and `POST /v1/plans`."""
    router = APIRouter()
    # Plain routes of ASGI: FastAPI's own would look for dependencies and a response model at every request, and
    # there are none.
    for path in dialects.by_path:
        router.routes.append(Route(path, Answers(RunResponse, ANSWER), methods=["POST"]))
    router.routes.append(Route("/v1/plans", Answers(PlanResponse, PLAN), methods=["POST"]))
    return router


class Answers:
    """A route that runs something.

    Args:
        response: owns the run.
        about: for the API's description.
    """

    def __init__(self, response: "type[RunResponse]", about: str) -> None:
        self._response, self.__doc__ = response, about

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        response = await _respond(Request(scope, receive, send), self._response)
        await response(scope, receive, send)


async def _respond(request: Request, response: type[RunResponse]) -> Response:
    service: Service = request.app.state.service
    dialects: Dialects = request.app.state.dialects
    dialect, caller = dialects.of(request.scope["path"]), caller_of(request)
    sent = await _parse(request, service, dialect)
    completed = await dialect.complete(sent, CallersRuns(service, caller))
    if request.scope.get(IS_BATCH):
        completed = replace(completed, priority="batch")
    check_size(completed.conversation, "messages")
    limits = service.pool.settings.limits
    parsed = await attach(completed, caller, batches_of(request).store, service)
    most = limits.max_text_bytes
    if (
        parsed is not sent and parsed.text_chars > most
    ):  # earlier turns and files that are kept here are text too
        raise too_much_text(most)
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
    """See that all answers of a request fit into a minute.

    Raises:
        BadTask: see `check_possible`.
    """
    if not rates_of(caller.account, caller.policies):
        return
    n = parsed.n if len(choices) > 1 else 1
    tokens = [each.token_estimate for each in choices[::n] for _ in range(n)]
    field = "n" if n > 1 else "prompt"
    check_possible(tokens, parsed.text_token_estimate, caller.account, caller.policies, field)


def _check_choices(choices: list[ApiRequest], keeping: Keeping | None) -> None:
    """Several answers end with their request.

    Raises:
        BadTask: they are to outlive it, or are too many.
    """
    if keeping is not None:
        message = (
            "n: several answers cannot outlive their request: leave podium.keep and Idempotency-Key out."
        )
        raise BadTask(message, param="n")
    if len(choices) > MOST_RUNS:
        message = f"prompt: {len(choices)} answers are more than the {MOST_RUNS} of a request. Send several."
        raise BadTask(message, param="prompt")


async def _check_no_run_waits(request: ApiRequest, dialect: Dialect, service: Service) -> None:
    """A run goes on once, with one answer.

    Raises:
        BadTask: the request brings results for a run that waits, or an id was not made here.
    """
    if not any(message.tool_results for message in request.conversation):
        return
    if find_tool_answer(request, dialect, await service.store.call_ids()) is not None:
        message = (
            "n: the results of tools go to the run that called them, which has one answer: ask with n 1."
        )
        raise BadTask(message, param="n")


class PlanResponse(RunResponse):
    """Owns a run that ends with its plan: a client that leaves pays for no more of it either."""

    plan_only = True

    def content(self, records: RunRecords, resolved: ResolvedTask | None) -> record_json.Json:
        """See `RunResponse.content`."""
        assert resolved is not None, "a run that is resumed is none of a plan alone"
        return _plan_json(records.record, resolved)


def _plan_json(record: Record, resolved: ResolvedTask) -> record_json.Json:
    written = record.answering_plan
    assert written is not None, "a run that finished has a plan"
    plan = Plan(tuple(step.step for step in written.steps))
    tokens, costs = worst_case(plan, _pool(resolved), resolved.task.conversation, resolved.task.sampling)
    steps = [
        record_json.step_json(step)
        | {
            "worst_case_cost_usd": record_json.dollars(cost),
            "worst_case_tokens": usage.total_tokens,
            "needed": index in plan.reachable,
        }
        for index, (step, usage, cost) in enumerate(zip(written.steps, tokens, costs, strict=True))
    ]
    return {
        "object": "plan",
        "model": record.model,
        "plan": [record_json.step_json(step) for step in written.steps],
        "steps": steps,
        "worst_case_cost_usd": record_json.dollars(total(costs)),
        "worst_case_tokens": sum(usage.total_tokens for usage in tokens),
        "podium": record_json.summary(record, trace=False),
        "usage": record_json.usage(record),
    }


def _pool(resolved: ResolvedTask) -> dict[str, PoolMember]:
    """The pool plus the team itself, whose cost is unknown until its plan exists."""
    team = TeamWorker(resolved.task.model, _open_nothing)
    return {TEAM: PoolMember(TEAM, team, price=None, worst_price=None), **resolved.team.pool}


def _open_nothing(_: Call) -> Never:
    raise AssertionError("an estimate calls nobody")


async def _parse(request: Request, service: Service, dialect: Dialect) -> ApiRequest:
    """The request in the body, which the edge (`serving/edge`) has read. Its limits are checked again: they
    may have changed since the edge was made.

    Raises:
        TooLarge: it is longer than the settings allow.
        BadTask: it is no request.
    """
    limits = service.pool.settings.limits
    body = await request.body()
    if len(body) > limits.max_body_bytes:
        raise too_large(limits.max_body_bytes)
    parsed = dialect.parse(body)
    if len(body) > limits.max_text_bytes and parsed.text_chars > limits.max_text_bytes:
        raise too_much_text(limits.max_text_bytes)
    betas = [f"{name} {quote(sent)} has no effect here." for name in BETA_HEADERS if (sent := request.headers.get(name))]  # fmt: skip
    return replace(parsed, left_out=(*parsed.left_out, *betas)) if betas else parsed
