"""`GET /v1/admin/ledger`: what was spent, line by line."""

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
    """What one call cost, or a correction. Lines are added and never changed."""

    model_config = ConfigDict(frozen=True)

    object: Literal["ledger.line"] = "ledger.line"
    id: int
    kind: str = Field(description="`call`, `lost`, `correction` or `adjust`.")
    run_id: str | None
    key_id: str
    team_id: str | None
    worker: str | None = Field(description="Who answered, and so bills it; of a `lost` call who was asked.")
    account: str | None = Field(
        description="Which deployment of the worker that was. null: it has one place."
    )
    cost_usd: Decimal = Field(description="Exact, as a text.")
    exact: bool = Field(
        description="If not, it is the most that the call can have cost, or an estimate of a stream that broke."
    )
    input_tokens: int | None
    output_tokens: int | None
    corrects: int | None = Field(description="The id of the line that an `adjust` corrects.")
    reason: str | None = Field(description="Of an `adjust`.")
    created_at: datetime

    @classmethod
    def of(cls, row: Any) -> "LedgerLine":
        """A row of the table."""
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
    """Lines, the newest first."""

    object: Literal["list"] = "list"
    data: list[LedgerLine]
    has_more: bool


@router.get("/ledger", responses={404: ABSENT})
async def list_ledger(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 100,
    team: Annotated[str | None, Query(description="The id or name of a team: its lines alone.")] = None,
    after: Annotated[int | None, Query(ge=1, le=2**62, description="The id of a line: older ones.")] = None,
) -> LedgerLines:
    """What was spent: the newest lines of the ledger."""
    directory: Directory = request.app.state.directory
    team_id = (await directory.team(team)).id if team is not None else None
    rows = await newest_lines(directory, limit + 1, team_id, after)
    return LedgerLines(data=[LedgerLine.of(row) for row in rows[:limit]], has_more=len(rows) > limit)
