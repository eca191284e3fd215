"""Ids of responses and of their items. They are derived from the id of the run, so that they need not be
stored.

A run that waits for tools has several responses (`segments.py`). Their ids end in the number of the response.
"""

import re

RESPONSE = re.compile(r"resp_([0-9a-f]{32})([0-9a-f]{2,6})")
ITEM = re.compile(r"(rs|msg|fc|ctc|cmp)_([0-9a-f]{32})([0-9a-f]{2,6})_i?\d{1,6}")
MOST_PART = 16**6 - 1


def response_id(run_id: str, part: int = 0) -> str:
    """Return the id of one response of a run. `part` is the number of the response, from 0."""
    return f"resp_{run_id.removeprefix('wf_')}{min(part, MOST_PART):02x}"


def run_of(response: str) -> tuple[str, int] | None:
    """Return the id of a response's run and the number of the response, or None if `response` has another
    format.
    """
    match = RESPONSE.fullmatch(response)
    return (f"wf_{match[1]}", int(match[2], 16)) if match else None


def item_id(kind: str, response: str, index: int, *, is_input: bool = False) -> str:
    """Return the id of an item of a response: `kind` is its prefix, `index` its place in the output or the
    input.
    """
    return f"{kind}_{response.removeprefix('resp_')}_{'i' if is_input else ''}{index}"


def response_of(item: str) -> str | None:
    """Return the id of an item's response, or None if the id has another format."""
    match = ITEM.fullmatch(item)
    return f"resp_{match[2]}{match[3]}" if match else None
