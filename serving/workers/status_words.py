"""What a provider's words beside an HTTP status mean. Knows no error of ours, and no wire."""

import re
from collections.abc import Container, Mapping
from typing import Literal

Meaning = Literal["too long", "filtered", "this call", "bad key"]
WORDS: tuple[tuple[Meaning, Container[int], str], ...] = (
    (
        "too long",
        (400, 422),
        (
            r"context[ _-]?(length|window|size|limit)|maximum (context|model|input|prompt) length|max_model_len"
            r"|(prompt|input|request|message)s? (is|are) too (long|large)|too many (input )?tokens"
            r"|token count .{0,40}exceeds|exceeds? .{0,40}(tokens allowed|token limit)"
        ),
    ),
    # OpenAI: alone it is more than may be sent in a minute
    ("too long", (429,), r"request too large"),
    (
        "filtered",
        range(400, 500),
        r"content[ _]?filter|content_policy_violation|ResponsibleAIPolicyViolation|content management policy",
    ),
    # OpenRouter's moderation and guardrails, and xAI
    ("filtered", (403,), r"moderation|flagged|guardrail|prompt injection|violates usage guidelines"),
    # OpenRouter: less credit than this call may take, and nobody who has the model with tools or with pictures
    ("this call", (402,), r"fewer max_tokens|prompt tokens limit exceeded"),
    ("this call", (404,), r"no endpoints found that"),
    # Gemini and xAI, which say 400, and Gemini of a key that leaked. Only as their first words: what a client wrote is quoted further on
    ("bad key", (400,), r"^API_KEY_INVALID INVALID_ARGUMENT$"),
    ("bad key", (403,), r"^API_KEY_\w+ PERMISSION_DENIED$"),
    (
        "bad key",
        (400, 403),
        r"^(incorrect|invalid) API key|^API key (not valid|not found|expired)|^your API key was reported",
    ),
)
"""What a status means where the provider's code or its words are these; the first that fits. Anything a client can put
into a provider's words, such as the name of an argument, must not be read here as a fault of every call.
"""

CERTAIN: Mapping[int, tuple[re.Pattern[str], re.Pattern[str]]] = {
    402: (
        re.compile(r"\b(billing_error|insufficient_(quota|credits?|balance|funds))\b", re.IGNORECASE),
        re.compile(r"insufficient (quota|credits?|balance|funds)\b", re.IGNORECASE),
    ),
    404: (
        re.compile(r"\b(model_not_found|not_?found_?error|NOT_FOUND|DeploymentNotFound)\b", re.IGNORECASE),
        re.compile(
            r"((the )?model\b.{0,200} (does not exist|not found)|no endpoints found for )", re.IGNORECASE
        ),
    ),
}
"""A provider's codes, and its first words, where it says itself what the status means. Without them a firewall or a CDN
may have said it of one prompt; a redirect always.
"""


def meaning_of(status: int, text: str, code: str) -> Meaning | None:
    """What the provider says beside the status, where that changes what the status means."""
    for meaning, statuses, words in WORDS:
        if status in statuses and any(re.search(words, said, re.IGNORECASE) for said in (code, text)):
            return meaning
    return None


def is_certain(status: int, text: str, code: str) -> bool:
    """Whether it is the provider who says it, and of every call."""
    if status not in CERTAIN:
        return False
    codes, first_words = CERTAIN[status]
    return bool(codes.search(code) or first_words.match(text))
