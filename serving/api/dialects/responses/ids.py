"""Ids of responses and of their items: made of the run's, so that none of them is kept anywhere.

A run that waits for tools is several responses (`segments.py`); their ids end in their number.
"""

import re

RESPONSE = re.compile(r"resp_([0-9a-f]{32})([0-9a-f]{2,6})")
ITEM = re.compile(r"(rs|msg|fc|ctc|cmp)_([0-9a-f]{32})([0-9a-f]{2,6})_i?\d{1,6}")
MOST_PART = 16**6 - 1


def response_id(run_id: str, part: int = 0) -> str:
    """The id of that response of a run."""
    return f"resp_{run_id.removeprefix('wf_')}{min(part, MOST_PART):02x}"


def run_of(response: str) -> tuple[str, int] | None:
    """The id of the run that a response is of, and its number in it; None where it is none of ours."""
    found = RESPONSE.fullmatch(response)
    return (f"wf_{found[1]}", int(found[2], 16)) if found else None


def item_id(kind: str, response: str, index: int, *, is_input: bool = False) -> str:
    """The id of an item of a response: `kind` is its prefix, `index` its place in the output or the input."""
    return f"{kind}_{response.removeprefix('resp_')}_{'i' if is_input else ''}{index}"


def response_of(item: str) -> str | None:
    """The id of the response that an item is of; None where it is none of ours."""
    found = ITEM.fullmatch(item)
    return f"resp_{found[2]}{found[3]}" if found else None
