"""Finish reasons: mapping of the providers' words, and checks against the content of the answer.

All APIs share one table, because proxies and compatible servers use one another's words.
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
"""Words that servers send instead of null."""


def finish_of(word: object, faults: ErrorMapper, usage: Usage | None) -> FinishReason | None:
    """Map a provider's finish reason to Podium's. Return None as long as the answer continues.

    Args:
        word: finish reason as the provider sent it, such as `max_tokens`.
        faults: error mapper of the worker.
        usage: usage that the server has reported so far, for billing if an error is raised.

    Raises:
        WorkerUnavailable: the finish reason is unknown.
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
    """Return whether the answer is complete after the finish reason `finish`.

    Some servers send `stop` before the first token. Therefore an empty answer is complete only when its
    connection ends.

    Args:
        finish: the newest finish reason, if any.
        has_answer: whether text or tool calls have arrived.
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
    """Correct a finish reason that does not fit the content of the answer.

    Some servers send `stop` after tool calls, or `tool_calls` after text. Tool calls of an answer that was cut off do
    not count, because the last one may be incomplete.

    Raises:
        WorkerRefused: the answer calls tools although none was offered.
        WorkerUnavailable: the finish reason is `tool_calls`, but the answer has neither calls nor text.
    """
    if finish not in (FinishReason.STOP, FinishReason.TOOL_CALLS):
        return finish
    if has_calls and not tools.is_offered:
        raise faults.refusal(
            f"{faults.worker} called a tool, although the request offers none.",
            "Check whether its `extra_body` contains tools.",
        )
    if has_calls:
        return FinishReason.TOOL_CALLS
    if finish is FinishReason.TOOL_CALLS and not has_words:
        error = faults.unavailable(
            f"{faults.worker} ended its answer with the finish reason tool_calls but sent no tool call. Try again."
        )
        error.billed_at_bound, error.only_this_call = usage is None, True
        raise error
    return FinishReason.STOP
