"""Which runs are meant, as conditions of the database."""

from sqlalchemy import ColumnElement, false, select, true

from serving.accounts.caller import Caller
from serving.accounts.money import to_pico
from serving.database.schema import run, run_feedback, run_text, run_worker
from serving.runs.finding import Wanted


def visible(caller: Caller) -> ColumnElement[bool]:
    """`Caller.sees`, for the database."""
    account = caller.account
    if caller.sees_every_run:
        return true()
    if account.team_id:
        return run.c.team_id == account.team_id
    return (run.c.key_id == account.key_id) & run.c.team_id.is_(None) if account.key_id else false()


def among(wanted: Wanted) -> list[ColumnElement[bool]]:
    """What of `Wanted.matches` is an index's beginning, for the database."""
    return [] if wanted.team_id is None else [run.c.team_id == wanted.team_id]


def conditions(wanted: Wanted) -> list[ColumnElement[bool]]:
    """The rest of `Wanted.matches`, for the database."""
    found: list[ColumnElement[bool]] = []
    if wanted.worker is not None:
        called = select(run_worker.c.run_id).where(
            run_worker.c.run_id == run.c.id, run_worker.c.worker == wanted.worker
        )
        found.append(called.exists())
    if wanted.model is not None:
        found.append(run.c.model == wanted.model)
    if wanted.status is not None:
        found.append(run.c.status == wanted.status)
    if wanted.min_cost_usd is not None:
        found.append(run.c.cost >= to_pico(wanted.min_cost_usd))
    if wanted.max_cost_usd is not None:
        found.append(run.c.cost <= to_pico(wanted.max_cost_usd))
    if wanted.words is not None:
        said = run_text.c.text.contains(wanted.words.casefold(), autoescape=True)
        found.append(select(run_text.c.run_id).where(run_text.c.run_id == run.c.id, said).exists())
    if wanted.rated:
        found.append(select(run_feedback.c.run_id).where(run_feedback.c.run_id == run.c.id).exists())
    return found
