"""How long a Claude model is told to think, for each `effort` of a call.

Models up to the 4.5 generation get a thinking budget in tokens, later ones adaptive thinking and their own `effort`;
models before 3.7 cannot think and get nothing. `none` and `minimal` switch thinking off. The budget never takes more
than half of `max_tokens`, because it counts against it; where less than the least allowed is left, the model does not
think. See https://platform.claude.com/docs/en/build-with-claude/extended-thinking.
"""

import re

LEAST_BUDGET_TOKENS = 1024
"""The API takes no smaller thinking budget."""
BUDGET_TOKENS = {"low": 1024, "medium": 4096, "high": 16_384, "xhigh": 32_768, "max": 32_768}
CANNOT_THINK = re.compile(r"claude-(instant|2|3-(5|opus|sonnet|haiku))")
THINKS_BY_BUDGET = re.compile(r"claude-(3-7|(opus|sonnet|haiku)-4(-[0-5])?(-\d{8}|-latest)?$)")


def thinking_for(
    model: str, effort: str | None, max_tokens: int
) -> tuple[dict[str, object] | None, str | None]:
    """The `thinking` field and the `effort` for what a call asks of `model`; None means: send nothing."""
    if effort is None or CANNOT_THINK.search(model):
        return None, None
    if THINKS_BY_BUDGET.search(model):
        budget = min(BUDGET_TOKENS.get(effort, 0), max_tokens // 2)
        return ({"type": "enabled", "budget_tokens": budget} if budget >= LEAST_BUDGET_TOKENS else None), None
    if effort in ("none", "minimal"):
        return {"type": "disabled"}, "low"
    return {"type": "adaptive", "display": "summarized"}, effort
