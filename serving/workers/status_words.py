"""What a provider's words beside an HTTP status mean. Knows no error of ours, and no wire."""

import re
from collections.abc import Container, Mapping
from typing import Literal

Meaning = Literal["too long", "filtered", "this call", "bad key"]
WORDS: tuple[tuple[Meaning, Container[int], str], ...] = (
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

MOST_CHARS = 20_000
"""Of a provider's words that are read. An error inside a stream may be as long as an event."""
MAY_BE_TOO_LONG = (400, 413, 422, 500)
"""Statuses that servers give a prompt that their model cannot hold."""
TOO_LONG = re.compile(
    r"(context|model)[ _-]?(length|window|size|limit)|max[ _]model[ _]len|prompt[ _]too[ _]long"
    r"|(prompt|inputs?|messages?|conversation)( (is|are))? too (long|large)|too many (input )?tokens",
    re.IGNORECASE,
)
"""Words that say it at once."""
PROMPT = re.compile(
    r"\b(inputs?|prompts?|request(ed|s)?|messages?|conversation|sequence|text)\b", re.IGNORECASE
)
SIZE = re.compile(r"\b(tokens?|length|context)\b", re.IGNORECASE)
LIMIT = re.compile(
    r"\bexceed|\b(longer|larger|greater|more|bigger|fewer|less|shorter) than\b|\btoo (long|large|many|big)\b|\blimit|\bmax"
    r"|\b(at most|reduce|shorten|truncate|overflow)|must be <|should be (in )?\[|\d ?> ?\d",
    re.IGNORECASE,
)
"""An error is about a prompt's length where its words name a prompt, a measure and a limit, whatever the sentence."""
ANOTHER_LIMIT = re.compile(
    r"\b(string|array|list|id|name|description|title|header|url|field|stop|tools?)\b.{0,40}\b(too (long|many|large)|length|exceed)"
    r"|expected an? (string|array)|\b(greater|more|longer) than or equal|(must|should) (be|have) (greater|more|longer|larger|at least)"
    r"|\b(quota|rate|billing|credits?|balance|concurren\w*)\b|per[ -](second|minute|min|hour|day|month)|\b(daily|monthly)\b"
    r"|budget_tokens|^(?!.*\b(inputs?|prompts?|messages?|context)\b).*\b(completion|output) tokens",
    re.IGNORECASE,
)
"""Lengths of other things, and limits of another kind."""
ITS_WORDS = re.compile(r"(input|content|prompt|text)(\[\d+\])?['`\"]?:? string too long", re.IGNORECASE)
FILLERS = re.compile(
    r"\b(invalid|bad)[ _]request(_error)?|\binput validation error|\brequest (failed|id)|api request",
    re.IGNORECASE,
)
"""Names a prompt, and means no more than "error"."""


A_RATE = re.compile(
    r"\b(tokens|requests) (per|a|each)[ -](second|minute|min|hour|day|month)\b", re.IGNORECASE
)
"""A limit of what may be sent in a time."""


def is_too_long(words: str) -> bool:
    """Return whether a provider's words say that a prompt is longer than its model can hold."""
    words = FILLERS.sub("", words.replace("_", " ") if " " not in words else words)
    if A_RATE.search(words):
        return False
    if TOO_LONG.search(words) or ITS_WORDS.search(words):
        return True
    if ANOTHER_LIMIT.search(words):
        return False
    return bool(PROMPT.search(words) and SIZE.search(words) and LIMIT.search(words))


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
    text, code = text[:MOST_CHARS], code[:MOST_CHARS]
    if status in MAY_BE_TOO_LONG and any(is_too_long(each) for each in (text, *code.split())):
        return "too long"
    for meaning, statuses, words in WORDS:
        if status in statuses and any(re.search(words, said, re.IGNORECASE) for said in (code, text)):
            return meaning
    return None


def is_certain(status: int, text: str, code: str) -> bool:
    """Whether it is the provider who says it, and of every call."""
    if status not in CERTAIN:
        return False
    codes, first_words = CERTAIN[status]
    text, code = text[:MOST_CHARS], code[:MOST_CHARS]
    return bool(codes.search(code) or first_words.match(text))
