"""INSERT statements that handle conflicts with existing rows, for SQLite and PostgreSQL.

SQLAlchemy has a separate statement for each database.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

from sqlalchemy import ARRAY, ColumnElement, Connection, Executable, Row, Table, bindparam, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import Insert

from serving.database.address import Kind
from serving.database.sqlite_fast_path import run_each

KINDS: tuple[Kind, ...] = ("postgresql", "sqlite")


def insert_into(kind: str, table: Table) -> Insert:
    """Return an INSERT statement for conflicts (`on_conflict_do_update`, `on_conflict_do_nothing`)."""
    return cast(Insert, sqlite.insert(table)) if kind == "sqlite" else postgresql.insert(table)


class RowInsert:
    """INSERT statement for any number of rows.

    A row with an existing primary key updates that row or is skipped.

    On PostgreSQL, the statement has one array parameter per column, so its text does not depend on the number
    of rows. For batches of 50 runs, it takes 26 % less CPU than `VALUES (...), (...)` in the router, and 30 %
    less in the database server.

    Args:
        update: columns of an existing row that are replaced by the new values. If empty, the new row is
            skipped.
        where: callable that returns a condition for the update, from the columns of the new row.
        returning: columns of the inserted or updated rows that `execute` returns.
    """

    def __init__(
        self,
        table: Table,
        columns: Sequence[str],
        *,
        update: Sequence[str] = (),
        where: Callable[[Any], ColumnElement[bool]] | None = None,
        returning: Sequence[Any] = (),
    ) -> None:
        self._columns, self._returns = columns, bool(returning)
        self._statements: dict[str, Executable] = {}
        for kind in KINDS:
            new = insert_into(kind, table)
            if kind == "postgresql":
                new = new.from_select(columns, select(*_unnest(table, columns).c))
            if update:
                values = {name: new.excluded[name] for name in update}
                condition = where(new.excluded) if where else None
                new = new.on_conflict_do_update(
                    index_elements=table.primary_key, set_=values, where=condition
                )
            else:
                new = new.on_conflict_do_nothing()
            self._statements[kind] = new.returning(*returning) if returning else new

    def execute(self, connection: Connection, rows: Sequence[Sequence[Any]]) -> Sequence[Row[Any]]:
        """Insert rows with different keys. Return `returning` of the inserted or updated rows, in any order."""
        if not rows:
            return []
        statement = self._statements[connection.dialect.name]
        if connection.dialect.name == "postgresql":
            arrays = dict(zip(self._columns, zip(*rows, strict=True), strict=True))
            result = connection.execute(statement, arrays)
            return result.all() if self._returns else []
        if not self._returns:
            run_each(connection, statement, self._columns, rows)
            return []
        return connection.execute(
            statement, [dict(zip(self._columns, row, strict=True)) for row in rows]
        ).all()


def _unnest(table: Table, columns: Sequence[str]) -> Any:
    arrays = [bindparam(name, type_=ARRAY(table.c[name].type)) for name in columns]
    return func.unnest(*arrays).table_valued(*columns).render_derived()
