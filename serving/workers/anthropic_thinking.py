"""Thinking parameters of Claude models for each `effort` of a call.

- Models up to generation 4.5 get a thinking budget in tokens. Later ones get adaptive thinking and an
  `effort`.
- Models before 3.7 cannot think and get no parameters.
- `none` and `minimal` turn thinking off.
- The budget is at most half of `max_tokens`, because thoughts count against it. If that is less than the minimum, the
  model does not think.

See https://platform.claude.com/docs/en/build-with-claude/extended-thinking.
"""

import re

LEAST_BUDGET_TOKENS = 1024
"""Smallest thinking budget that the API accepts."""
BUDGET_TOKENS = {"low": 1024, "medium": 4096, "high": 16_384, "xhigh": 32_768, "max": 32_768}
CANNOT_THINK = re.compile(r"claude-(instant|2|3-(5|opus|sonnet|haiku))")
THINKS_BY_BUDGET = re.compile(r"claude-(3-7|(opus|sonnet|haiku)-4(-[0-5])?(-\d{8}|-latest)?$)")


def thinking_for(
    model: str, effort: str | None, max_tokens: int
) -> tuple[dict[str, object] | None, str | None]:
    """Return the request fields `thinking` and `effort` for a call of `model`. A field that is None is not
    sent.
    """
    if effort is None or CANNOT_THINK.search(model):
        return None, None
    if THINKS_BY_BUDGET.search(model):
        budget = min(BUDGET_TOKENS.get(effort, 0), max_tokens // 2)
        return ({"type": "enabled", "budget_tokens": budget} if budget >= LEAST_BUDGET_TOKENS else None), None
    if effort in ("none", "minimal"):
        return {"type": "disabled"}, "low"
    return {"type": "adaptive", "display": "summarized"}, effort
