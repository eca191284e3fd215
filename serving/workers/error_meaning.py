"""Find the meaning of an HTTP error in the provider's message and code, if the status alone is ambiguous."""

import re
from collections.abc import Container, Mapping
from typing import Literal

Meaning = Literal["too long", "filtered", "this call", "bad key"]
WORDS: tuple[tuple[Meaning, Container[int], str], ...] = (
    # OpenAI: the request alone exceeds the tokens per minute
    ("too long", (429,), r"request too large"),
    (
        "filtered",
        range(400, 500),
        r"content[ _]?filter|content_policy_violation|ResponsibleAIPolicyViolation|content management policy",
    ),
    # OpenRouter's moderation and guardrails, and xAI
    ("filtered", (403,), r"moderation|flagged|guardrail|prompt injection|violates usage guidelines"),
    # OpenRouter: not enough credit for this call, or no provider of the model supports tools or pictures
    ("this call", (402,), r"fewer max_tokens|prompt tokens limit exceeded"),
    ("this call", (404,), r"no endpoints found that"),
    # Gemini and xAI answer 400 to a bad key; Gemini also reports leaked keys. Match only the beginning of a message,
    # because the rest may quote the client
    ("bad key", (400,), r"^API_KEY_INVALID INVALID_ARGUMENT$"),
    ("bad key", (403,), r"^API_KEY_\w+ PERMISSION_DENIED$"),
    (
        "bad key",
        (400, 403),
        r"^(incorrect|invalid) API key|^API key (not valid|not found|expired)|^your API key was reported",
    ),
)
"""Each entry has a meaning, the statuses to which it applies, and a pattern for the provider's code or
message. The first match counts. A client can influence parts of the message, for example by the name of an
argument. Such text must not match "bad key", because that meaning stops all calls to the worker.
"""

MOST_CHARS = 20_000
"""Maximum characters of a message that are searched. One may be as long as an event."""
MAY_BE_TOO_LONG = (400, 413, 422, 500)
"""Statuses that servers return for a prompt that exceeds the model's context."""
TOO_LONG = re.compile(
    r"(context|model)[ _-]?(length|window|size|limit)|max[ _]model[ _]len|prompt[ _]too[ _]long"
    r"|(prompt|inputs?|messages?|conversation)( (is|are))? too (long|large)|too many (input )?tokens",
    re.IGNORECASE,
)
"""Phrases that always mean that the prompt is too long."""
PROMPT = re.compile(
    r"\b(inputs?|prompts?|request(ed|s)?|messages?|conversation|sequence|text)\b", re.IGNORECASE
)
SIZE = re.compile(r"\b(tokens?|length|context)\b", re.IGNORECASE)
LIMIT = re.compile(
    r"\bexceed|\b(longer|larger|greater|more|bigger|fewer|less|shorter) than\b|\btoo (long|large|many|big)\b|\blimit|\bmax"
    r"|\b(at most|reduce|shorten|truncate|overflow)|must be <|should be (in )?\[|\d ?> ?\d",
    re.IGNORECASE,
)
"""Words for a limit. A message that also matches `PROMPT` and `SIZE` is about the prompt's length."""
ANOTHER_LIMIT = re.compile(
    r"\b(string|array|list|id|name|description|title|header|url|field|stop|tools?)\b.{0,40}\b(too (long|many|large)|length|exceed)"
    r"|expected an? (string|array)|\b(greater|more|longer) than or equal|(must|should) (be|have) (greater|more|longer|larger|at least)"
    r"|\b(quota|rate|billing|credits?|balance|concurren\w*)\b|per[ -](second|minute|min|hour|day|month)|\b(daily|monthly)\b"
    r"|budget_tokens|^(?!.*\b(inputs?|prompts?|messages?|context)\b).*\b(completion|output) tokens",
    re.IGNORECASE,
)
"""Phrases about the length of something other than the prompt, or about another kind of limit."""
ITS_WORDS = re.compile(r"(input|content|prompt|text)(\[\d+\])?['`\"]?:? string too long", re.IGNORECASE)
FILLERS = re.compile(
    r"\b(invalid|bad)[ _]request(_error)?|\binput validation error|\brequest (failed|id)|api request",
    re.IGNORECASE,
)
"""Phrases with a word for the prompt that only mean "error"."""


A_RATE = re.compile(
    r"\b(tokens|requests) (per|a|each)[ -](second|minute|min|hour|day|month)\b", re.IGNORECASE
)
"""Phrases for a rate limit."""


def is_too_long(words: str) -> bool:
    """Return whether a provider's message says that the prompt exceeds the model's context."""
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
"""Codes and beginnings of messages that show that the provider itself sent the status. Otherwise a firewall or CDN may
have sent it because of one prompt."""


def meaning_of(status: int, text: str, code: str) -> Meaning | None:
    """Return what an error means by its message and code, or None if the status alone says it."""
    text, code = text[:MOST_CHARS], code[:MOST_CHARS]
    if status in MAY_BE_TOO_LONG and any(is_too_long(each) for each in (text, *code.split())):
        return "too long"
    for meaning, statuses, words in WORDS:
        if status in statuses and any(re.search(words, each, re.IGNORECASE) for each in (code, text)):
            return meaning
    return None


def is_certain(status: int, text: str, code: str) -> bool:
    """Return whether it is certain that the provider itself sent the error and that it applies to every call."""
    if status not in CERTAIN:
        return False
    codes, first_words = CERTAIN[status]
    text, code = text[:MOST_CHARS], code[:MOST_CHARS]
    return bool(codes.search(code) or first_words.match(text))
