"""Conversion of the usage that Anthropic's API reports."""

from conductor.model.usage import Usage
from serving.workers.usage import UsageCheck


def usage_of(
    reported: object, before: Usage | None, check: UsageCheck, *, is_begun: bool = False
) -> Usage | None:
    """Return the usage that Anthropic reports, or None if it has no output tokens or is implausible.

    Args:
        reported: usage object of the SDK. The SDK does not check its values.
        before: usage from earlier events, or None. Fields that are missing in `reported` keep their earlier
            value.
        check: usage check of the call.
        is_begun: whether this is the event at the start of the stream. Its number of output tokens is
            ignored, because it says nothing about the answer.
    """

    def count(name: str, of: object = reported) -> int | None:
        return check.count(name, getattr(of, name, None))

    uncached, read, cache_write = (
        count(name) for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    cache_write_1h = count("ephemeral_1h_input_tokens", getattr(reported, "cache_creation", None))
    thoughts = count("thinking_tokens", getattr(reported, "output_tokens_details", None))
    output = count("output_tokens")
    if output is None:
        return None
    earlier = before or Usage()
    cached = earlier.cached_input_tokens if read is None else read
    cache_write = earlier.cache_write_tokens if cache_write is None else cache_write
    return check.usage(
        earlier.input_tokens if uncached is None else uncached + cached + cache_write,
        0 if is_begun else output,
        cached,
        earlier.reasoning_tokens if thoughts is None else thoughts,
        cache_write,
        earlier.cache_write_1h_tokens if cache_write_1h is None else cache_write_1h,
    )
