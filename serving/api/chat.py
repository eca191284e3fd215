"""`POST /v1/chat/completions` and `POST /v1/plans`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from conductor.money import Ledger, total
from conductor.plan import Plan, Step
from conductor.preview import worst_case
from conductor.record import Record
from conductor.recursion import ITSELF, Recursive
from conductor.worker import Member
from serving.api import answer
from serving.api.schema import ChatRequest, read
from serving.api.service import Service
from serving.api.stream import RunResponse
from serving.api.task import Order
from serving.edge.body import too_large, too_much_text

router = APIRouter()


async def chat_completions(request: Request) -> Response:
    """Answer a conversation; streaming where `stream` is true."""
    service: Service = request.app.state.service
    return RunResponse(service, await _body(request, service), dict(request.headers))


async def plans(request: Request) -> Response:
    """The plan that the same body would run, and what it may cost at worst. Only the conductor is asked, and paid."""
    service: Service = request.app.state.service
    return PlanResponse(service, await _body(request, service), dict(request.headers))


# Plain routes: FastAPI's own would look for dependencies and a response model at every request, and there are none.
router.add_route("/v1/chat/completions", chat_completions, methods=["POST"])
router.add_route("/v1/plans", plans, methods=["POST"])


class PlanResponse(RunResponse):
    """Owns a run that ends with its plan: a client that leaves pays for no more of it either."""

    plan_only = True

    def content(self, record: Record, ordered: Order) -> answer.Json:
        """See `RunResponse.content`."""
        return _planned(record, ordered)


def _planned(record: Record, ordered: Order) -> answer.Json:
    written = record.answering_plan
    assert written is not None, "a run that finished has a plan"
    plan = Plan(tuple(Step(step.worker, step.subtask, step.access) for step in written.steps))
    tokens, costs = worst_case(plan, _pool(ordered), ordered.task.conversation, ordered.task.sampling)
    steps = [
        answer.written(step) | {
            "worst_case_cost_usd": answer.dollars(cost), "worst_case_tokens": usage.total_tokens,
            "needed": index in plan.needed,
        }
        for index, (step, usage, cost) in enumerate(zip(written.steps, tokens, costs, strict=True))
    ]  # fmt: skip
    return {
        "object": "plan", "model": record.model, "plan": [answer.written(step) for step in written.steps], "steps": steps,
        "worst_case_cost_usd": answer.dollars(total(costs)), "worst_case_tokens": sum(usage.total_tokens for usage in tokens),
        "podium": answer.summary(record, trace=False), "usage": answer.usage(record),
    }  # fmt: skip


def _pool(ordered: Order) -> dict[str, Member]:
    """With the whole team as one of its workers: what that may cost is nobody's to say before its plan is there."""
    team = Recursive(ordered.engine, ordered.task, Ledger())
    return {ITSELF: Member(ITSELF, team, price=None, worst_price=None), **ordered.engine.pool}


async def _body(request: Request, service: Service) -> ChatRequest:
    """The request in the body, which the edge (`serving/edge`) has read; its limits once more, as they are by now.

    Raises:
        TooLarge: it is longer than the settings take.
        BadTask: it is no request.
    """
    limits = service.pool.settings.limits
    body = await request.body()
    if len(body) > limits.max_body_bytes:
        raise too_large(limits.max_body_bytes)
    asked = read(body)
    if len(body) > limits.max_text_bytes and asked.text_chars > limits.max_text_bytes:
        raise too_much_text(limits.max_text_bytes)
    return asked
