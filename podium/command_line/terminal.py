"""What programs print: text of servers and models without control characters, tables and progress bars.

rich is imported only when something is printed with it, so that `podium doctor` works if packages are missing.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""ASCII control characters and Unicode direction marks that could move the cursor or reverse a line."""


def inert(text: str) -> str:
    """Return `text` with every control character replaced by U+FFFD."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def inert_json(value: object, *, indent: int | None = None) -> str:
    """Return `value` as readable JSON with escaped control characters. It parses to the same value."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


WIDE = 400
"""Columns if the output is not a terminal."""


def console(*, errors: bool = False, markup: bool = False) -> Console:
    """Return a console. Colours appear only on a terminal; text for a file or a pipe is not wrapped.

    Args:
        errors: write to stderr.
        markup: read rich's markup, such as `[red]`. Text of servers and models must not be markup.
    """
    from rich.console import Console

    is_terminal = (sys.stderr if errors else sys.stdout).isatty()
    width = None if is_terminal else WIDE
    return Console(stderr=errors, highlight=False, markup=markup, emoji=False, soft_wrap=True, width=width)


def table(*headings: str, right: Iterable[str] = (), title: str | None = None) -> Table:
    """Return an empty table without borders.

    Args:
        headings: titles of the columns.
        right: titles of more columns, whose cells are aligned to the right.
        title: printed above the table.
    """
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for heading in headings:
        made.add_column(heading, overflow="fold")
    for heading in right:
        made.add_column(heading, justify="right")
    return made


def progress(out: Console, *details: str, transient: bool = False, auto_refresh: bool = True) -> Progress:
    """Return progress bars: description, bar, count, time since the start and time left.

    Args:
        out: the console.
        details: fields of a task to show behind its bar.
        transient: remove the bars at the end.
        auto_refresh: redraw them regularly.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    texts = [TextColumn(f"{{task.fields[{detail}]}}") for detail in details]
    return Progress(
        TextColumn("{task.description}"), *columns, *texts,
        console=out, transient=transient, auto_refresh=auto_refresh,
    )  # fmt: skip


def cell(value: object, style: str = "") -> Text:
    """Render a server's value as plain text, or as "" if it is None."""
    from rich.text import Text

    return Text("" if value is None else inert(str(value)), style)
