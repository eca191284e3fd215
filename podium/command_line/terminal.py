"""What programs print: text of servers and models without control characters, and tables.

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


def cell(value: object, style: str = "") -> Text:
    """Render a server's value as plain text, or as "" if it is None."""
    from rich.text import Text

    return Text("" if value is None else inert(str(value)), style)
