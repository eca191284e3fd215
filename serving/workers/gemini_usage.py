"""Conversion of the usage that Gemini's API reports. It counts thoughts separately from the answer."""

from google.genai import types

from conductor.model.usage import Usage
from serving.workers.usage import UsageCheck


def usage_of(reported: types.GenerateContentResponseUsageMetadata | None, check: UsageCheck) -> Usage | None:
    """Return the usage in `reported`, or None if there is none or it is implausible."""
    if reported is None:
        return None
    prompt, tools, answer, thoughts, cached = (
        check.count(name, getattr(reported, name))
        for name in (
            "prompt_token_count",
            "tool_use_prompt_token_count",
            "candidates_token_count",
            "thoughts_token_count",
            "cached_content_token_count",
        )
    )
    return check.usage(
        None if prompt is None else prompt + (tools or 0), (answer or 0) + (thoughts or 0), cached, thoughts
    )
