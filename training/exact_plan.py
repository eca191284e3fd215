"""Whether a plan's text is the plan and nothing else.

The engine's parsers pass over what stands around a plan, because a served model may say a word too many. A policy that is
rewarded for such texts learns to go on for ever (learned the hard way: completions that fill their limit with junk), so the
reward also asks that nothing follows the plan, and for `steps` that nothing stands before it or in between.
"""

import json

from conductor.errors import InvalidPlan
from conductor.formats import Format, parser


def is_exact_plan(format: Format, text: str, workers: list[str], max_steps: int) -> bool:
    """Whether `text`, a plan that the engine accepts, has nothing beside it: blanks aside, to its very end."""
    return _only_objects(text) if format == "steps" else _ends_with_the_plan(text, workers, max_steps)


def _only_objects(text: str) -> bool:
    rest, decoder = text.strip(), json.JSONDecoder()
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return False
        if not isinstance(value, dict):
            return False
        rest = rest[end:].lstrip()
    return True


def _ends_with_the_plan(text: str, workers: list[str], max_steps: int) -> bool:
    """Free reasoning comes first in `lists`; then the text without its last character must be no whole plan."""
    reader = parser("lists", workers, max_steps)
    try:
        reader.feed(text.rstrip()[:-1])
        reader.finish()
    except InvalidPlan:
        return True
    return False
