"""Who may ask what, as a table: the requests and statuses of test_who_may.py, which sends them.

`python -m tests.serving.api.access_table`, or `make access-table`, writes it into docs/security.md.
"""

import re

from tests.conftest import ROOT

PAGE = ROOT / "docs/security.md"
BEGIN, END = "<!-- access table: make access-table -->\n", "<!-- end of it -->"


def table() -> str:
    """The table in Markdown."""
    from tests.serving.api.test_who_may import BESIDES, TABLE, WHO

    head = ["request", *(who or "no key" for who in WHO)]
    lines = [_line(head), _line(["---"] * len(head))]
    for asked in (*TABLE, *BESIDES):
        extra = [f"{name}: {value}" for name, value in (asked.headers or {}).items()]
        extra += ["streamed"] if (asked.body or {}).get("stream") else []
        request = f"`{asked.method} {asked.path}`" + (f" ({', '.join(extra)})" if extra else "")
        lines.append(_line([request, *map(str, asked.statuses)]))
    return "\n".join(lines) + "\n"


def write() -> None:
    """Put the table between the marks of the page."""
    page = PAGE.read_text()
    PAGE.write_text(re.sub(f"(?s)(?<={BEGIN}).*(?={END})", lambda _: table(), page))


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    write()
