"""Usage and cost in chunks of OpenAI-compatible servers."""

from conductor.model.usage import Usage
from serving.workers.chat_chunks import ChatChunk, fields
from serving.workers.usage import UsageCheck, integer


def cost_of(chunk: ChatChunk) -> object:
    """Return the cost so far that the server reports, or None if it reports none.

    OpenRouter reports it as `usage.cost`, and another Podium server as `podium.cost_usd`. If OpenRouter uses
    the account's own key of a provider (`is_byok`), its cost is only its fee, so the result is None.
    """
    usage = fields(chunk.usage)
    if usage.get("is_byok"):
        return None
    cost = usage.get("cost")
    return fields(chunk.podium).get("cost_usd") if cost is None else cost


def usage_of(reported: object, check: UsageCheck) -> Usage | None:
    """Return the usage in `reported`, or None if there is none or it is implausible."""
    if reported is None:
        return None
    usage = fields(reported)
    of_prompt, of_answer = (
        fields(usage.get("prompt_tokens_details")),
        fields(usage.get("completion_tokens_details")),
    )
    n_input = check.count("prompt_tokens", usage.get("prompt_tokens"))
    n_output = check.count("completion_tokens", usage.get("completion_tokens"))
    n_reasoning = check.count("reasoning_tokens", of_answer.get("reasoning_tokens"))
    if (
        n_input
        and n_reasoning
        and integer(usage.get("total_tokens")) == n_input + (n_output or 0) + n_reasoning
    ):
        n_output = (n_output or 0) + n_reasoning  # xAI's completion_tokens do not include thoughts
    return check.usage(
        n_input,
        n_output,
        check.count("cached_tokens", of_prompt.get("cached_tokens")),
        n_reasoning,
        check.count("cache_write_tokens", of_prompt.get("cache_write_tokens")),
    )
