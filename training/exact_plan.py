"""Whether a plan's text is the plan and nothing else.

The engine's parsers skip what stands around a plan, because a served model may write a word too many. A
policy that is rewarded for such texts learns never to stop: it fills its token limit with junk. So the reward
also requires that nothing follows the plan, and for `steps` that nothing stands before or between its steps.
"""

import json

from conductor.errors import InvalidPlan
from conductor.plan.formats import Format, parser


def is_exact_plan(format: Format, text: str, workers: list[str], max_steps: int) -> bool:
    """Whether `text`, a plan that the engine accepts, is nothing but the plan; white space aside."""
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
    """In `lists` free reasoning comes first; the text without its last character must be no whole plan."""
    reader = parser("lists", workers, max_steps)
    try:
        reader.feed(text.rstrip()[:-1])
        reader.finish()
    except InvalidPlan:
        return True
    return False
