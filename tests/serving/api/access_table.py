"""Who may ask what, as tables: what each route takes and may hold (`serving/api/access.py`), and the requests and statuses of
test_who_may.py, which sends them.

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
    return "\n".join([*_costs(), "", *lines]) + "\n"


def _costs() -> list[str]:
    """Each route with who may call it and its kind, and what answering a request of a kind may hold."""
    from serving.api.access import access_table
    from serving.api.dialects.table import DIALECTS

    rows = access_table(DIALECTS)
    kinds = {access.cost.name: access.cost for access in rows.values()}
    head = ["kind", "answers open at once", "bytes", "CPU"]
    lines = [_line(head), _line(["---"] * len(head))]
    lines += [_line([each.name, each.streams, each.memory, each.cpu]) for each in kinds.values()]
    head = ["route (HEAD as GET)", "scope", "kind"]
    lines += ["", _line(head), _line(["---"] * len(head))]
    for place, access in rows.items():
        lines.append(_line([f"`{place}`", access.who.value, access.cost.name]))
    return lines


def write() -> None:
    """Put the table between the marks of the page."""
    page = PAGE.read_text()
    PAGE.write_text(re.sub(f"(?s)(?<={BEGIN}).*(?={END})", lambda _: table(), page))


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    write()
