"""Check that a text is a plan and nothing else.

The engine's parsers skip text around a plan, because a served model may write a word too many. A policy that
is rewarded for such texts learns never to stop, and fills its token limit with junk. The reward therefore
requires that nothing follows the plan. For the `steps` format, nothing may come before or between its steps
either.
"""

import json

from conductor.errors import InvalidPlan
from conductor.plan.plan import Format
from conductor.run.plan_requests import parser


def is_exact_plan(format: Format, text: str, workers: list[str], max_steps: int) -> bool:
    """Return whether `text`, which the engine accepts as a plan, is only the plan. White space is ignored."""
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
    """Return whether `text` is no plan without its last character. `lists` has reasoning before the plan."""
    reader = parser("lists", workers, max_steps)
    try:
        reader.feed(text.rstrip()[:-1])
        reader.finish()
    except InvalidPlan:
        return True
    return False
