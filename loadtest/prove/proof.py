"""Frame of the proofs: the option for databases, the loop over them, the table of results and the exit code.

A row of the table is a dataclass with the property `is_right`. Its columns are the fields, and those of
dataclasses in them.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Protocol, TypeVar, cast

from typer import Option

from loadtest.rig.databases import KINDS, DatabaseKind, empty_databases
from podium.command_line.process import machine
from podium.command_line.terminal import console, table
from serving.database.address import Address

Stores = Annotated[
    list[DatabaseKind] | None, Option(help="database to test; repeatable", show_default="both")
]


class ProofRow(Protocol):
    @property
    def is_right(self) -> bool: ...


Row = TypeVar("Row", bound=ProofRow)


async def for_each_store(
    stores: Sequence[DatabaseKind] | None, prove: Callable[[str, Address], Awaitable[Row]], runs: int = 1
) -> list[Row]:
    """Run a proof `runs` times over each kind of database, every time over an empty one."""
    rows: list[Row] = []
    async with aclosing(empty_databases(stores or KINDS, runs)) as databases:
        async for kind, _, address in databases:
            rows.append(await prove(kind, address))
            sys.stderr.write(" | ".join(cells(rows[-1])) + "\n")
    return rows


def conclude(rows: Sequence[ProofRow], title: str) -> int:
    """Print the table of the rows. Return the exit code: 0 if every row is right, else 1."""
    new_table = table(right=columns(rows[0]), title=f"{title}; {machine()}")
    for row in rows:
        new_table.add_row(*cells(row))
    console().print(new_table)
    return 0 if all(row.is_right for row in rows) else 1


def report_missed(targets: Sequence[str]) -> int:
    """Print the missed targets. Return the exit code: 0 if there are none, else 1."""
    console().print(f"Missed targets: {'; '.join(targets)}." if targets else "All targets met.")
    return 1 if targets else 0


def cells(row: ProofRow) -> list[str]:
    """Return the values of a row as text. A list is shown as its length."""
    return [_text(value) for value in columns(row).values()]


def columns(row: Any) -> dict[str, object]:
    values: dict[str, object] = {}
    for each in fields(row):
        value = getattr(row, each.name)
        if is_dataclass(value):
            values |= columns(value)
        elif not each.name.startswith("_"):
            values[_heading(each.name)] = value
    return values


def _heading(name: str) -> str:
    words = name.replace("_", " ").replace(" usd", " $")
    return f"{words[:-2]}, s" if words.endswith(" s") else words


def _text(value: Any) -> str:
    match value:
        case float():
            return f"{value:.5g}"
        case Mapping():
            counts = cast(Mapping[str, int], value)
            return ", ".join(f"{n} {what}" for what, n in sorted(counts.items())) or "0"
        case list():
            return str(len(cast(list[object], value)))
        case _:
            return str(value)
