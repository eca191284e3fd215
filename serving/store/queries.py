"""SQL conditions that select runs."""

from sqlalchemy import ColumnElement, Table, false, select, true

from conductor.run.record import Account
from serving.accounts.caller import Caller
from serving.accounts.money import to_pico
from serving.database.schema import run, run_feedback, run_text, run_worker
from serving.store.run_filter import RunFilter


def visible(caller: Caller) -> ColumnElement[bool]:
    """Return the SQL condition for runs that the caller may see. It corresponds to `Caller.sees`."""
    account = caller.account
    if caller.sees_every_run:
        return true()
    if account.team_id:
        return run.c.team_id == account.team_id
    return (run.c.key_id == account.key_id) & run.c.team_id.is_(None) if account.key_id else false()


def owner_condition(table: Table, account: Account) -> ColumnElement[bool]:
    """Return the SQL condition for an account's rows, as `same_owner`. Without a team, `team_id` is ""."""
    is_team = table.c.team_id == account.team_id
    return is_team if account.team_id else is_team & (table.c.key_id == account.key_id)


def among(run_filter: RunFilter) -> list[ColumnElement[bool]]:
    """Return the SQL conditions of a filter that an index supports, on its first column."""
    return [] if run_filter.team_id is None else [run.c.team_id == run_filter.team_id]


def conditions(run_filter: RunFilter) -> list[ColumnElement[bool]]:
    """Return all other SQL conditions of a filter. See `among`."""
    selected: list[ColumnElement[bool]] = []
    if run_filter.worker is not None:
        called = select(run_worker.c.run_id).where(
            run_worker.c.run_id == run.c.id, run_worker.c.worker == run_filter.worker
        )
        selected.append(called.exists())
    if run_filter.model is not None:
        selected.append(run.c.model == run_filter.model)
    if run_filter.status is not None:
        selected.append(run.c.status == run_filter.status)
    if run_filter.min_cost_usd is not None:
        selected.append(run.c.cost >= to_pico(run_filter.min_cost_usd))
    if run_filter.max_cost_usd is not None:
        selected.append(run.c.cost <= to_pico(run_filter.max_cost_usd))
    if run_filter.words is not None:
        has_words = run_text.c.text.contains(run_filter.words.casefold(), autoescape=True)
        selected.append(select(run_text.c.run_id).where(run_text.c.run_id == run.c.id, has_words).exists())
    if run_filter.rated:
        selected.append(select(run_feedback.c.run_id).where(run_feedback.c.run_id == run.c.id).exists())
    return selected
