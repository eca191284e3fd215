"""Terminal output of programs: tables, progress bars, and untrusted text without control characters.

rich is imported only when it is used, so that `podium doctor` works even if packages are missing.
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
"""ASCII control characters and Unicode direction marks, which could move the cursor or reverse a line."""


def inert(text: str) -> str:
    """Return `text` with every control character replaced by U+FFFD."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def inert_json(value: object, *, indent: int | None = None) -> str:
    """Return `value` as readable JSON that parses to it, with escaped control characters."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


WIDE = 400
"""Width of the output, in columns, if it is not a terminal."""


def console(*, errors: bool = False, markup: bool = False) -> Console:
    """Create a rich console, with colours only on a terminal, unwrapped for files. Never interpret `markup`
    in texts from servers or models.
    """
    from rich.console import Console

    is_terminal = (sys.stderr if errors else sys.stdout).isatty()
    width = None if is_terminal else WIDE
    return Console(stderr=errors, highlight=False, markup=markup, emoji=False, soft_wrap=True, width=width)


def table(*headings: str, right: Iterable[str] = (), title: str | None = None) -> Table:
    """Create an empty table without borders, whose columns `right` are aligned to the right."""
    from rich.table import Table

    new_table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for heading in headings:
        new_table.add_column(heading, overflow="fold")
    for heading in right:
        new_table.add_column(heading, justify="right")
    return new_table


def progress(out: Console, *details: str, transient: bool = False, auto_refresh: bool = True) -> Progress:
    """Create progress bars with description, bar, count, times, and the task fields in `details`."""
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
    """Render a value from the server as plain text, or as "" if it is None."""
    from rich.text import Text

    return Text("" if value is None else inert(str(value)), style)
