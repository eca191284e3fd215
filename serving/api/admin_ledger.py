"""`GET /v1/admin/ledger`: spending, one line per call."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from serving.accounts.directory import Directory
from serving.accounts.key_info import US
from serving.accounts.ledger_lines import newest_lines
from serving.accounts.money import to_usd
from serving.api.admin import ABSENT, ALWAYS, administrator

router = APIRouter(prefix="/v1/admin", dependencies=[Depends(administrator)], responses=ALWAYS)
MOST_LINES = 1000


class LedgerLine(BaseModel):
    """Cost of one call, or a correction. Lines are only added, never changed."""

    model_config = ConfigDict(frozen=True)

    object: Literal["ledger.line"] = "ledger.line"
    id: int
    kind: str = Field(
        description="`call`: cost of a call. `lost`: maximum cost of a call whose result is unknown. "
        "`correction`: difference between a `lost` line and the real cost. `adjust`: correction by an administrator."
    )
    run_id: str | None
    key_id: str
    team_id: str | None
    worker: str | None = Field(
        description="Worker that answered and billed the call. For a `lost` call: the worker that was called."
    )
    account: str | None = Field(
        description="Deployment of the worker that answered, or null if the worker has only one."
    )
    cost_usd: Decimal = Field(description="Cost in dollars, as an exact decimal string.")
    exact: bool = Field(
        description="Whether `cost_usd` is exact. If false, it is the maximum cost of the call, or an estimate for an interrupted stream."
    )
    input_tokens: int | None
    output_tokens: int | None
    corrects: int | None = Field(description="Id of the line that an `adjust` line corrects.")
    reason: str | None = Field(description="Reason for an `adjust` line.")
    created_at: datetime

    @classmethod
    def of(cls, row: Any) -> "LedgerLine":
        return cls(
            id=row.id,
            kind=row.kind,
            run_id=row.run_id,
            key_id=row.key_id,
            team_id=row.team_id,
            worker=row.worker,
            account=row.account,
            cost_usd=to_usd(row.amount),
            exact=bool(row.exact),
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            corrects=row.corrects,
            reason=row.reason,
            created_at=datetime.fromtimestamp(row.at_us / US, UTC),
        )


class LedgerLines(BaseModel):
    """Lines of the ledger, newest first."""

    object: Literal["list"] = "list"
    data: list[LedgerLine]
    has_more: bool


@router.get("/ledger", responses={404: ABSENT})
async def list_ledger(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 100,
    team: Annotated[str | None, Query(description="Id or name of a team. Only its lines are listed.")] = None,
    after: Annotated[
        int | None, Query(ge=1, le=2**62, description="Id of a line. Only older lines are listed.")
    ] = None,
) -> LedgerLines:
    """List the newest lines of the ledger."""
    directory: Directory = request.app.state.directory
    team_id = (await directory.team(team)).id if team is not None else None
    rows = await newest_lines(directory, limit + 1, team_id, after)
    return LedgerLines(data=[LedgerLine.of(row) for row in rows[:limit]], has_more=len(rows) > limit)
