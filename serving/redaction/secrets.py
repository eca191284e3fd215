"""Secrets in texts: those that this process uses, and whatever has the form of a well-known sort of key.

Only forms that hardly anything else has: a word that looks random may as well be a digest or a name.
"""

import re
from collections.abc import Callable

REMOVED = "[secret removed]"
LEAST_CHARS = 12
"""A shorter value is a word, and would be taken out of everything; all forms are longer."""
MOST_WAITING = 4000
"""A piece of a text that is longer does not wait for the end of its line."""

# What must be in a text for the pattern to be tried, so that the longest prompt costs microseconds.
_FORMS: tuple[tuple[str, str], ...] = (
    ("pk_", r"pk_[0-9A-Za-z]{49}"),  # Podium
    ("sk-", r"sk-[\w-]{20,}"),  # OpenAI, Anthropic, OpenRouter, DeepSeek
    ("sk_", r"sk_(?:live|test)_[0-9A-Za-z]{16,}"),  # Stripe
    ("rk_", r"rk_(?:live|test)_[0-9A-Za-z]{16,}"),
    ("gsk_", r"gsk_[0-9A-Za-z]{40,}"),  # Groq
    ("xai-", r"xai-[0-9A-Za-z]{40,}"),
    ("AIza", r"AIza[\w-]{35}"),  # Google
    ("AKIA", r"AKIA[0-9A-Z]{16}"),  # AWS
    ("ASIA", r"ASIA[0-9A-Z]{16}"),
    ("hf_", r"hf_[0-9A-Za-z]{30,}"),  # Hugging Face
    ("gh", r"gh[opsur]_[0-9A-Za-z]{36,}"),  # GitHub
    ("github_pat_", r"github_pat_\w{22,}"),
    ("glpat-", r"glpat-[\w-]{20,}"),  # GitLab
    ("xox", r"xox[abeoprs]-[\w-]{10,}"),  # Slack
    ("npm_", r"npm_[0-9A-Za-z]{36}"),
    ("pypi-", r"pypi-[\w-]{50,}"),
    ("SG.", r"SG\.[\w-]{22}\.[\w-]{43}"),  # SendGrid
    ("eyJ", r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"),  # a JSON web token
)
_PATTERNS = tuple((anchor, re.compile(rf"(?<![0-9A-Za-z]){form}")) for anchor, form in _FORMS)
_PEM = re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----.*?(?:-----END (?:[A-Z]+ )*PRIVATE KEY-----|\Z)", re.DOTALL)  # fmt: skip
_PEM_OPEN = re.compile(r"-----BEGIN (?:[A-Z]+ )*(?:PRIVATE KEY-----(?!.*-----END [A-Z ]*KEY-----)|[A-Z]*-*\Z)", re.DOTALL)  # fmt: skip
_URL = re.compile(r"(?<=://)([^\s/:@]*):([^\s/@]+)@")
_known: set[str] = set()


def learn_secret(value: str) -> None:
    """Take `value` out of every text from now on."""
    if len(value) >= LEAST_CHARS:
        _known.add(value)


def redact_secrets(text: str) -> str:
    """`text` without secrets; itself where it has none."""
    if len(text) < LEAST_CHARS:
        return text
    for value in _known:
        if value in text:
            text = text.replace(value, REMOVED)
    for anchor, pattern in _PATTERNS:
        if anchor in text:
            text = pattern.sub(REMOVED, text)
    if "PRIVATE KEY-----" in text:
        text = _PEM.sub(REMOVED, text)
    if "://" in text and "@" in text:
        text = _URL.sub(rf"\1:{REMOVED}@", text)
    return text


Redactor = Callable[[str], str]


class StreamRedactor:
    """Redacts a text that comes in pieces: what may be the beginning of something to be taken out waits.

    Args:
        redact: what takes things out of a text.
        boundary: the white space that nothing to be taken out goes across.
    """

    def __init__(self, redact: Redactor = redact_secrets, boundary: str = " \t\n") -> None:
        self._redact, self._boundary, self._waiting = redact, boundary, ""

    def feed(self, piece: str) -> str:
        """What can be told after `piece`."""
        self._waiting += piece
        boundary = self._boundary if len(self._waiting) < MOST_WAITING else " \t\n"
        end = max(self._waiting.rfind(blank) for blank in boundary) + 1
        if (open_key := _PEM_OPEN.search(self._waiting)) is not None:
            end = min(end, open_key.start())
        for key in _PEM.finditer(self._waiting):
            end = key.start() if key.start() < end < key.end() else end
        told, self._waiting = self._waiting[:end], self._waiting[end:]
        return self._redact(told)

    def flush(self) -> str:
        """The rest: nothing follows."""
        told, self._waiting = self._waiting, ""
        return self._redact(told)
