"""`GET /v1/costs`: spending by day, team, key, model and worker, and what the providers' caches saved."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, cast, get_args

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from conductor.errors import BadTask, quote
from conductor.model.usage import Price
from serving.accounts.money import to_usd
from serving.api.authentication import caller_of
from serving.api.respond import success_list
from serving.sessions.service import Service
from serving.settings.worker_profile import baseline_price_of
from serving.store.run_costs import COLUMNS, MOST_GROUPS, TOKENS, CostField, CostGroup, CostQuery

Json = dict[str, Any]
router = APIRouter()
EPOCH = date(1970, 1, 1)
Day = Annotated[date, Field(ge=EPOCH)]
DEFAULT_DAYS, MOST_DAYS = 30, 92
FIELDS: tuple[CostField, ...] = get_args(CostField)


@router.get("/v1/costs")
async def costs(
    request: Request,
    first: Annotated[
        Day | None,
        Query(
            alias="from", description="First day (UTC), such as 2026-11-01. By default, 29 days before `to`."
        ),
    ] = None,
    last: Annotated[Day | None, Query(alias="to", description="Last day (UTC). By default, today.")] = None,
    by: Annotated[
        str, Query(max_length=100, description="Fields to group by, separated by commas.")
    ] = ",".join(FIELDS),
) -> Response:
    """Sum the costs of the runs of the caller's team. An administrator gets the costs of all teams.

    A run counts for the day on which it started. It counts once it has ended or waits for tool results. Costs are
    exact decimal strings in US dollars. `saved_usd` is what the same tokens would have cost without the providers'
    caches, minus their cost. `unknown_costs` counts calls of unknown cost, which `cost_usd` does not contain.

    `baseline_usd` is an estimate: the cost of the tokens of the answers at the price of the model that the settings
    name as `baseline`. It is null without a baseline. The calls that write plans, and all steps before the answer,
    do not count for it. Answers of unknown cost count neither for it nor for `cost_usd`.

    Administrators also get the sum of the ledger for the same runs. `difference_usd` is that sum minus the recorded
    costs. It is not 0 if the ledger has corrections, or calls whose end no run has recorded.
    """
    service: Service = request.app.state.service
    fields = _fields(by)
    last = last or datetime.now(tz=UTC).date()
    first = first or last - timedelta(days=DEFAULT_DAYS - 1)
    if not timedelta() <= last - first < timedelta(days=MOST_DAYS):
        raise BadTask(
            f"`from` must not be after `to`, and the period must have at most {MOST_DAYS} days.", param="from"
        )
    query = CostQuery((first - EPOCH).days, (last - EPOCH).days, fields)
    report = await service.store.costs(query, caller_of(request))
    if len(report.groups) > MOST_GROUPS:
        raise BadTask(
            f"The report has more than {MOST_GROUPS} groups. Group by fewer fields, or ask for fewer days.",
            param="by",
        )
    settings, ledger = service.settings(), report.ledger
    price = baseline_price_of(settings)
    rest: Json = {
        "from": first.isoformat(),
        "to": last.isoformat(),
        "baseline": settings.baseline.model if settings.baseline and price else None,
        "ledger": ledger and {"cost_usd": _usd(ledger.cost), "difference_usd": _usd(ledger.difference)},
    }
    return await success_list(report.groups, lambda group: _group_json(group, fields, price), rest)


def _fields(text: str) -> tuple[CostField, ...]:
    """Return the fields in `text`, without duplicates.

    Raises:
        BadTask: there is no field, or an unknown one.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in FIELDS]
    if unknown or not names:
        fault = f"{quote(unknown[0])} is not one of them" if unknown else "it is empty"
        raise BadTask(f"`by` must be a list of {', '.join(FIELDS)}, but {fault}.", param="by")
    return cast(tuple[CostField, ...], tuple(names))


def _group_json(group: CostGroup, fields: tuple[CostField, ...], price: Price | None) -> Json:
    values = {COLUMNS[field]: value for field, value in zip(fields, group.values, strict=True)}
    if "day" in values:
        values["day"] = (EPOCH + timedelta(days=values["day"])).isoformat()
    if "worker" in values:
        values["worker"] = values["worker"] or None
    return {
        **values,
        "runs": group.runs,
        **{name: group.sums[name] for name in ("calls", *TOKENS)},
        "cost_usd": _usd(group.sums["cost"]),
        "saved_usd": _usd(group.sums["saved"]),
        "baseline_usd": _baseline_usd(group, price),
        "unknown_costs": group.sums["unknown_costs"],
    }


def _baseline_usd(group: CostGroup, price: Price | None) -> str | None:
    """Return what the tokens of the answers would have cost at `price`, or None without a price.

    The rates for long prompts do not apply, because the tokens are those of many calls.
    """
    if price is None:
        return None
    return f"{replace(price, long_prompts=()).of(group.answer_usage).normalize():f}"


def _usd(pico: int) -> str:
    return f"{to_usd(pico):f}"
