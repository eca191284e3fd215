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

# Texts come from strangers and are megabytes long: no pattern may take more than one look at each character.
# A key's beginning, and what comes after it. `re` finds a literal beginning in a fraction of the time that it takes to try
# a pattern at each character, so that the longest prompt, or picture, costs milliseconds.
_FORMS: tuple[tuple[str, str], ...] = (
    ("pk_", r"[0-9A-Za-z]{49}"),  # Podium
    ("sk-", r"[\w-]{20,}"),  # OpenAI, Anthropic, OpenRouter, DeepSeek
    ("sk_", r"(?:live|test)_[0-9A-Za-z]{16,}"),  # Stripe
    ("rk_", r"(?:live|test)_[0-9A-Za-z]{16,}"),
    ("gsk_", r"[0-9A-Za-z]{40,}"),  # Groq
    ("xai-", r"[0-9A-Za-z]{40,}"),
    ("AIza", r"[\w-]{35}"),  # Google
    ("AKIA", r"[0-9A-Z]{16}"),  # AWS
    ("ASIA", r"[0-9A-Z]{16}"),
    ("hf_", r"[0-9A-Za-z]{30,}"),  # Hugging Face
    ("gh", r"[opsur]_[0-9A-Za-z]{36,}"),  # GitHub
    ("github_pat_", r"\w{22,}"),
    ("glpat-", r"[\w-]{20,}"),  # GitLab
    ("xox", r"[abeoprs]-[\w-]{10,}"),  # Slack
    ("npm_", r"[0-9A-Za-z]{36}"),
    ("pypi-", r"[\w-]{50,}"),
    ("SG.", r"[\w-]{22}\.[\w-]{43}"),  # SendGrid
)
_PATTERNS = tuple(
    re.compile(rf"{beginning}(?<![0-9A-Za-z]{beginning}){rest}")
    for beginning, rest in ((re.escape(beginning), rest) for beginning, rest in _FORMS)
)
# A JSON web token, with up to 40 characters that stand right before it. Sought where a word begins: to try again at
# each `eyJ` inside one would take the square of its length.
_WEB_TOKEN = re.compile(r"(?<![\w-])(?:[\w-]{0,40}[_-])?eyJ[\w-]{8,}+\.eyJ[\w-]{8,}+\.[\w-]{8,}+")
_KEY = r"(?:[A-Z]{1,20} ){0,4}PRIVATE KEY-----"
_PEM_END = re.compile(rf"-----END {_KEY}")
_PEM = re.compile(rf"-----BEGIN {_KEY}.*?(?:{_PEM_END.pattern}|\Z)", re.DOTALL)
_PEM_PERHAPS = re.compile(r"-----BEGIN (?:[A-Z]{1,20} ){0,5}[A-Z]{0,20}-{0,5}\Z")
_PEM_END_CHARS = 160
"""An end of a key, and the beginning of one, have fewer."""
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
    for pattern in _PATTERNS:
        text = pattern.sub(REMOVED, text)
    if ".eyJ" in text:
        text = _WEB_TOKEN.sub(REMOVED, text)
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
        self._redact, self._boundary = redact, boundary
        self._waiting: list[str] = []
        self._n_waiting = 0
        self._is_in_key = False

    def feed(self, piece: str) -> str:
        """What can be told after `piece`. What waits is looked at again only where a piece can end it."""
        self._waiting.append(piece)
        self._n_waiting += len(piece)
        if self._is_in_key:
            return self._leave_key()
        blanks = self._boundary if self._n_waiting < MOST_WAITING else " \t\n"
        return self._tell(blanks) if any(blank in piece for blank in blanks) else ""

    def flush(self) -> str:
        """The rest: nothing follows."""
        told = "" if self._is_in_key else self._redact("".join(self._waiting))
        self._wait("")
        self._is_in_key = False
        return told

    def _tell(self, blanks: str) -> str:
        text = "".join(self._waiting)
        end = max(text.rfind(blank) for blank in blanks) + 1
        if (perhaps := _PEM_PERHAPS.search(text, max(0, len(text) - _PEM_END_CHARS))) is not None:
            end = min(end, perhaps.start())
        for key in _PEM.finditer(text):
            if not _PEM_END.search(key[0], max(0, len(key[0]) - _PEM_END_CHARS)):  # it goes on
                told = self._redact(text[: key.start()]) + REMOVED
                self._is_in_key = True
                self._wait(text[key.start() :])
                return told
            end = key.start() if key.start() < end < key.end() else end
        self._wait(text[end:])
        return self._redact(text[:end])

    def _leave_key(self) -> str:
        """Drop a key, up to its end."""
        text = "".join(self._waiting)
        found = _PEM_END.search(text)
        if found is None:
            self._wait(text[-_PEM_END_CHARS:])
            return ""
        self._is_in_key = False
        self._wait("")
        return self.feed(text[found.end() :])

    def _wait(self, text: str) -> None:
        self._waiting, self._n_waiting = [text], len(text)
