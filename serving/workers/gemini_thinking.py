"""Thinking parameters of Gemini models for each `effort` of a call.

Models of generation 2.5 get a budget in tokens, and later models get a level. Older models get no parameters.
Pro models cannot stop thinking, so they think as little as possible for `none` and `minimal`.

See https://ai.google.dev/gemini-api/docs/thinking.
"""

from google.genai import types

BUDGET_TOKENS = {"low": 1024, "medium": 8192, "high": 24_576, "xhigh": 24_576, "max": 24_576}
PRO_BUDGET_TOKENS = {"none": 128, "minimal": 128, "xhigh": 32_768, "max": 32_768}
"""Budgets of Pro models where they differ from those of other models. Pro models cannot stop thinking, and
may think longer.
"""
LEVELS = {"none": "MINIMAL", "minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM", "high": "HIGH"}
PRO_LEVELS = {"none": "LOW", "minimal": "LOW"}


def thinking_for(model: str, effort: str | None) -> types.ThinkingConfig | None:
    """Return the thinking configuration for a call of `model`, or None to send none."""
    family = model.removeprefix("models/")
    if effort is None or not family.startswith("gemini-") or family.startswith(("gemini-1", "gemini-2.0")):
        return None
    is_pro, least = "pro" in family, effort in ("none", "minimal")
    if family.startswith("gemini-2"):
        budget = (PRO_BUDGET_TOKENS if is_pro else {}).get(effort, BUDGET_TOKENS.get(effort, 0))
        return types.ThinkingConfig(thinking_budget=budget, include_thoughts=None if least else True)
    level = (PRO_LEVELS if is_pro else {}).get(effort, LEVELS.get(effort, "HIGH"))
    return types.ThinkingConfig(
        thinking_level=types.ThinkingLevel(level), include_thoughts=None if least else True
    )
