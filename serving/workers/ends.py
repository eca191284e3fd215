"""How an answer ended: its provider's word for it, and what is in it.

One table for all wires, because proxies and compatible servers use one another's words. Knows no wire.
"""

from conductor.model.reply import FinishReason
from conductor.model.usage import Usage
from serving.workers.http_errors import ErrorMapper
from serving.workers.wire_tools import WireTools

WORDS = {
    FinishReason.STOP: "stop eos eos_token end end_turn stop_sequence stop_token complete completed finished",
    FinishReason.LENGTH: "length max_tokens max_output_tokens max_length model_length max_completion_tokens"
    " model_context_window_exceeded continuation",
    FinishReason.TOOL_CALLS: "tool_calls tool_call tool_use function_call",
    FinishReason.CONTENT_FILTER: "content_filter content_filtered refusal safety sensitive recitation language"
    " blocklist prohibited_content spii image_safety image_prohibited_content image_recitation escalation"
    " pup_limited_disabled model_armor",
}
"""The providers' words for each reason, in lower case."""
REASONS = {word: reason for reason, words in WORDS.items() for word in words.split()}
NO_REASON = ("", "null", "none", "finish_reason_unspecified")
"""Sent by servers for null."""


def finish_of(word: object, faults: ErrorMapper, usage: Usage | None) -> FinishReason | None:
    """Return the reason that `word` stands for, or None while the answer goes on.

    Raises:
        WorkerUnavailable: no wire has such a reason. `usage` is what the server counted.
    """
    if word is None:
        return None
    plain = word.strip().lower() if isinstance(word, str) else word
    if plain in NO_REASON:
        return None
    if not isinstance(plain, str) or plain not in REASONS:
        raise faults.odd_end(word, usage)
    return REASONS[plain]


def is_over(finish: FinishReason | None, *, has_answer: bool) -> bool:
    """Return whether an answer that ended with `finish` may be waited for no longer.

    Some servers say `stop` before the first word, so an empty answer is over only when its connection is.

    Args:
        finish: the newest reason, if any.
        has_answer: words or calls have come.
    """
    may_be_early = finish in (FinishReason.STOP, FinishReason.TOOL_CALLS)
    return finish is not None and (has_answer or not may_be_early)


def end_of(
    finish: FinishReason,
    faults: ErrorMapper,
    tools: WireTools,
    *,
    has_calls: bool,
    has_words: bool,
    usage: Usage | None,
) -> FinishReason:
    """Return why the answer ended, by what is in it: servers say `stop` after calls, and `tool_calls` after words.

    Calls in an answer that was cut are left out, because the last one may not be whole.

    Raises:
        WorkerRefused: it calls tools, and was offered none.
        WorkerUnavailable: it says that it calls a tool, and has neither calls nor words.
    """
    if finish not in (FinishReason.STOP, FinishReason.TOOL_CALLS):
        return finish
    if has_calls and not tools.is_offered:
        raise faults.refusal("wants to call a tool, and was offered none.", "Look at its extra_body.")
    if has_calls:
        return FinishReason.TOOL_CALLS
    if finish is FinishReason.TOOL_CALLS and not has_words:
        error = faults.unavailable("ended its answer to call a tool, and sent no call. Try again.")
        error.billed_at_bound, error.only_this_call = usage is None, True
        raise error
    return FinishReason.STOP
