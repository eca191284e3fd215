"""What OpenAI's chunks say a call took, in the words of the servers that speak that wire."""

from conductor.model.usage import Usage
from serving.workers.chat_chunks import ChatChunk, fields
from serving.workers.usage import UsageCheck, integer


def cost_of(chunk: ChatChunk) -> object:
    """What the server says the call cost so far: OpenRouter's `usage.cost`, or another Podium's
    `podium.cost_usd`. Where OpenRouter uses a key of ours, its cost is its fee alone: none is known then.
    """
    usage = fields(chunk.usage)
    if usage.get("is_byok"):
        return None
    cost = usage.get("cost")
    return fields(chunk.podium).get("cost_usd") if cost is None else cost


def usage_of(reported: object, check: UsageCheck) -> Usage | None:
    """The tokens that `reported` says; None where it says none, or what cannot be true."""
    if reported is None:
        return None
    usage = fields(reported)
    of_prompt, of_answer = (
        fields(usage.get("prompt_tokens_details")),
        fields(usage.get("completion_tokens_details")),
    )
    read = check.count("prompt_tokens", usage.get("prompt_tokens"))
    said = check.count("completion_tokens", usage.get("completion_tokens"))
    thought = check.count("reasoning_tokens", of_answer.get("reasoning_tokens"))
    if read and thought and integer(usage.get("total_tokens")) == read + (said or 0) + thought:
        said = (said or 0) + thought  # as xAI counts: beside the answer, not in it
    return check.usage(
        read,
        said,
        check.count("cached_tokens", of_prompt.get("cached_tokens")),
        thought,
        check.count("cache_write_tokens", of_prompt.get("cache_write_tokens")),
    )
