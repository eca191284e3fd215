"""What Anthropic says a call took, in our words."""

from conductor.model.usage import Usage
from serving.workers.usage import UsageCheck


def usage_of(
    reported: object, before: Usage | None, check: UsageCheck, *, is_begun: bool = False
) -> Usage | None:
    """Ours from theirs, which the SDK does not check. A later message may leave out what it has said
    already: then what was `before` stays. A stream that has only `is_begun` counts a token or more of the answer,
    and says nothing with it.
    """

    def count(name: str, of: object = reported) -> int | None:
        return check.count(name, getattr(of, name, None))

    fresh, read, written = (
        count(name) for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    written_1h = count("ephemeral_1h_input_tokens", getattr(reported, "cache_creation", None))
    thoughts = count("thinking_tokens", getattr(reported, "output_tokens_details", None))
    said = count("output_tokens")
    if said is None:
        return None
    earlier = before or Usage()
    cached = earlier.cached_input_tokens if read is None else read
    written = earlier.cache_write_tokens if written is None else written
    return check.usage(
        earlier.input_tokens if fresh is None else fresh + cached + written,
        0 if is_begun else said,
        cached,
        earlier.reasoning_tokens if thoughts is None else thoughts,
        written,
        earlier.cache_write_1h_tokens if written_1h is None else written_1h,
    )
