"""`GET /v1/models`: every name that `model` accepts."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from conductor.model.terms import Permit
from conductor.model.usage import Price
from serving.accounts.account_policy import permit_of
from serving.api.authentication import caller_of
from serving.api.request import FIELDS
from serving.api.resolve import check_name, find_allowed_names, names
from serving.api.respond import success
from serving.sessions.service import Service

router = APIRouter()
RATES = (
    "input_usd_per_mtok",
    "output_usd_per_mtok",
    "cached_input_usd_per_mtok",
    "cache_write_usd_per_mtok",
    "cache_write_1h_usd_per_mtok",
)
"""Fields of a price that are shown. A rate that is not set is the same as that of other input."""
NEVER = "1970-01-01T00:00:00Z"
"""`created_at` in Anthropic's format. The real date of a model is unknown."""


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """List the models that the caller may use, with the fields of OpenAI's and Anthropic's lists.

    `podium.kind` says whether a name is a conductor, a workflow or a worker.
    """
    service: Service = request.app.state.service
    policies = caller_of(request).policies
    allowed = find_allowed_names(service.pool, policies)
    permit = permit_of(policies, service.settings())
    ends = {"first_id": next(iter(allowed), None), "last_id": next(reversed(allowed), None)}
    listed = [_model(service, permit, *each) for each in allowed.items()]
    return success({"object": "list", "data": listed, "has_more": False} | ends)


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    """Return one model that the caller may use."""
    service: Service = request.app.state.service
    policies = caller_of(request).policies
    permit = check_name(name, service.pool, policies)
    return success(_model(service, permit, name, names(service.pool)[name]))


def _model(service: Service, permit: Permit, name: str, kind: str) -> dict[str, object]:
    podium: dict[str, object] = {"kind": kind}
    if kind == "worker":
        pool = service.pool
        podium |= {
            "card": pool.members[name].card,
            "sees_images": pool.members[name].sees_images,
            "reads_pdfs": pool.members[name].reads_pdfs,
            "calls_tools": pool.members[name].calls_tools,
            "in_pool": name in pool.settings.pool,
            "serves": sorted(pool.members[name].serves),
            "takes": sorted(FIELDS[option] for option in pool.members[name].takes),
            "model": pool.models[name],
            "adapter": pool.adapters.get(name),
            "provenance": pool.provenance.get(name),
            "context_tokens": pool.context_tokens[name],
            "price": _price(pool.members[name].price),
            "circuit": pool.health[name].circuit,
        }
    if kind == "conductor":
        podium["context_tokens"] = _largest_context(service, permit, name)
    conductor = service.settings().conductor if kind == "conductor" else None
    if conductor is not None and permit.allows(conductor.worker):
        podium["conductor"] = {"worker": conductor.worker, "model": service.pool.models[conductor.worker]}
    anthropics = {"type": "model", "display_name": name, "created_at": NEVER}
    return {"id": name, "object": "model", "created": 0, "owned_by": "podium", **anthropics, "podium": podium}


def _largest_context(service: Service, permit: Permit, name: str) -> int | None:
    """Return the largest context length of the workers that a conductor's model may call, or None if all are
    unknown.
    """
    settings = service.settings()
    workers = filter(permit.allows, settings.models[name].workers or settings.pool)
    lengths = [service.pool.context_tokens[worker] for worker in workers]
    return max((length for length in lengths if length is not None), default=None)


def _price(price: Price | None) -> dict[str, float] | None:
    """Return a worker's own price in dollars per million tokens, or None if it is unknown."""
    if price is None:
        return None
    rates = {name: getattr(price, name) for name in RATES}
    return {name: float(rate) for name, rate in rates.items() if rate is not None}
