"""`GET /v1/budget`: the caller's key, and limit, spending and remainder of the key and its team."""

from fastapi import APIRouter, Request, Response

from serving.accounts.budget_limits import Spending, least_balance
from serving.accounts.directory import Directory
from serving.accounts.hold import key_subject, team_subject
from serving.api.admin_schema import BudgetBody, Key, OwnBudget
from serving.api.authentication import caller_of

router = APIRouter()


@router.get("/v1/budget")
async def budget(request: Request, response: Response) -> OwnBudget:
    """Return your key, and the daily and monthly budgets of your key and your team. Each budget has its
    limit, and the amounts that are spent, reserved for open calls, and left.

    Every key may call this. The responses of runs have the remaining amount in the header
    `x-podium-budget-left-usd`.
    """
    directory: Directory | None = request.app.state.directory
    account = caller_of(request).account
    response.headers["cache-control"] = "no-store"
    key: list[Spending] = []
    team: list[Spending] = []
    api_key: Key | None = None
    if directory is not None and account.key_id:
        api_key = Key.of(await directory.key(account.key_id))
        key = await directory.budget(key_subject(account.key_id))
        team = await directory.budget(team_subject(account.team_id)) if account.team_id else []
    balance = least_balance({"key": key, "team": team})
    return OwnBudget(
        api_key=api_key,
        left_usd=balance and balance.usd,
        key=BudgetBody.of(account.key_id, key) if key else None,
        team=BudgetBody.of(account.team_id, team) if team else None,
    )
