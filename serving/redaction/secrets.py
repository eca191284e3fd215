"""Redaction of secrets in texts: the secrets of this process, and keys in well-known formats.

Texts come from clients and may be megabytes long. One pattern finds where a key may begin, and the form of
that key is matched from there. Long work is split into steps (`slices.py`).

A client chooses the texts, so neither the whole work nor a step may depend on what is in them. For that:

* Each pattern reads a character only a few times. If two parts of it can match the same character, the first
  is possessive (`*+`).
* A pattern that is matched at a candidate reads a limited number of characters.
* A step ends after `STEP_CHARS` characters or `STEP_HITS` candidates.
"""

import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import NamedTuple
from urllib.parse import unquote

from serving.redaction.secret_forms import FORMS, or_escaped, rest_with_escapes, unescape
from serving.redaction.slices import Steps, finish

REMOVED = "[secret removed]"
LEAST_CHARS = 12
"""Minimum length of a secret, in characters. A shorter value may be a common word, which would then be
removed from every text. All forms are longer."""
MOST_WAITING = 4000
"""Maximum number of characters of a streamed text that are held back until a boundary character arrives.
Beyond it, any white space is a boundary."""
STEP_CHARS = 20_000
"""Number of characters of a text that are searched in one step."""
STEP_HITS = 256
"""Maximum number of candidates that are checked in one step."""
MOST_KEY = 20_000
"""Maximum length of a key, in characters. The longest keys are JSON web tokens, which servers accept up to
8,000 or 16,000 characters."""
MOST_PEM = 100_000
"""Maximum length of a PEM key, in characters. A PGP key with many signatures has 50,000."""
MOST_HEADER = 8000
"""Maximum length of the header of a JSON web token, in characters."""
MOST_PASSWORD = 1024
"""Maximum number of characters between the `://` and the `@` of a URL with a password."""


def _any_of(words: Iterable[str], change: Callable[[str], str] = str) -> str:
    """Build a pattern that matches any of `words` and reads each character only once. `change` is applied to
    the pattern of each character.
    """
    rest = dict[str, list[str]]()
    for word in words:
        if not word:
            return ""
        rest.setdefault(word[0], []).append(word[1:])
    branches = [change(re.escape(first)) + _any_of(after, change) for first, after in rest.items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


_READERS = {begin: re.compile(rest, re.ASCII) for begin, rest in FORMS}
LONGEST_BEGINNING = 10 * max(map(len, _READERS))
_BEGINNING = re.compile(rf"(?<![0-9A-Za-z])({_any_of(_READERS)})")
_SEQUENCE = re.compile(r"\\(?:[nrtbf]|u[0-9A-Fa-f]{4})|%[0-9A-Fa-f]{2}")
_ESCAPED_BEGINNING = re.compile(
    rf"(?:{_SEQUENCE.pattern}|(?<![0-9A-Za-z]))"
    rf"({_any_of(_READERS, or_escaped)})"
)
"""Prefix of a key that contains escape sequences of JSON or a URL, such as `\\u002d` or `%3D`, or follows one.
The sequence before it ends with a letter or digit, so `_BEGINNING` does not match there."""
_ALNUM = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
MEDIA_TYPE = re.compile(
    r"image/(?:png|jpe?g|gif|webp)|application/(?:pdf|json|xml)|text/(?:plain|markdown|csv|html|xml)",
    re.IGNORECASE,
)
"""Types of the files that requests contain as base64."""
_PICTURE = re.compile(rf"data:(?:{MEDIA_TYPE.pattern});base64,", re.IGNORECASE)
_BASE64, _URL_BASE64 = re.compile(r"[0-9A-Za-z+/]+"), re.compile(r"[0-9A-Za-z_-]+")
_BEFORE_COLON = re.compile(r"\d{5,16}(?:(?=tob(?![0-9A-Za-z]))|(?![0-9A-Za-z]))")
"""Id of a Telegram bot, reversed. In URLs, `bot` may precede the id."""
_BOT = re.compile(r"[\w-]{33,36}(?![\w-])", re.ASCII)
_RUN = re.compile(r"[\w-]*", re.ASCII)
_PAYLOAD = re.compile(r"[\w-]{5,}(?:\.[\w-]*)?", re.ASCII)
_CLIENT_SECRET = re.compile(r"[\w~.-]{31,34}", re.ASCII)
_PORT = re.compile(r"(?:[^\s/:@.]*+\.[^\s/:@]*+|localhost|\[[^\s/@\]]*+\]):\d{1,5}(?=\\{0,4}/)")
_KEY = r"(?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
_PEM_BEGIN, _PEM_END = re.compile(rf"-----BEGIN {_KEY}"), re.compile(rf"-----END {_KEY}")
_PEM = re.compile(rf"-----BEGIN {_KEY}.*?(?:{_PEM_END.pattern}|\Z)", re.DOTALL)
_PEM_PERHAPS = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,6}[A-Z0-9]{0,20}-{0,5}\Z")
_SCHEME_AT_END = re.compile(r"(?:bearer|basic) \Z", re.IGNORECASE)
_PEM_END_CHARS = 160
"""Maximum length of the BEGIN or END line of a PEM key, in characters."""
_secrets: set[str] = set()

Span = tuple[int, int]
Read = Callable[[str, int, int], Span | None]
"""Function that returns the span of the secret at a position, or None if there is no secret. Its arguments
are the text, the position of a literal in it, and the end of the last span that was removed."""


def learn_secret(value: str) -> None:
    """Remove `value` from every text from now on."""
    if len(value) >= LEAST_CHARS:
        _secrets.add(value)


def redact_secrets(text: str) -> str:
    if len(text) < LEAST_CHARS or (len(text) <= STEP_CHARS and not _may_hold_secrets(text)):
        return text
    return finish(secrets_in_steps(text))


def _may_hold_secrets(text: str) -> bool:
    """Return whether a short text may contain secrets.

    This quick test runs for every chunk of a streamed answer. Hardly any chunk contains a secret.
    """
    if ("@" in text and "://" in text) or "\\" in text or any(map(text.__contains__, _MARKS)):
        return True
    if _BEGINNING.search(text) is not None or ("%" in text and _ESCAPED_BEGINNING.search(text) is not None):
        return True
    return any(map(text.__contains__, _secrets))


def secrets_in_steps(text: str) -> Steps[str]:
    """Redact secrets as `redact_secrets` does, in short steps between which other work can run."""
    if len(text) < LEAST_CHARS or (yield from is_picture(text)):
        return text
    is_long = len(text) > STEP_CHARS
    for value in tuple(_secrets):
        if is_long or value in text:
            text = yield from take_out(text, value, partial(_value, len(value)), REMOVED)
    text = yield from _keys(text)
    for literal, read in _PLACES:
        if literal == "@" and "://" not in text and "\\/" not in text:
            continue
        text = yield from take_out(text, literal, read, REMOVED)
    return text


def is_picture(text: str) -> Steps[bool]:
    """Return whether `text` is a base64 file in a URL, which is not searched for keys."""
    begin = _PICTURE.match(text) if text.startswith("data:") else None
    return begin is not None and (yield from _is_base64(text, begin.end(), _BASE64))


def is_encoded(text: str) -> Steps[bool]:
    """Return whether `text` is base64, in one of its two alphabets, and not a key in that alphabet."""
    return (yield from _is_base64(text, 0, _BASE64)) or (yield from _is_base64(text, 0, _URL_BASE64))


def _is_base64(text: str, at: int, alphabet: re.Pattern[str]) -> Steps[bool]:
    key = _BEGINNING.match(text, at)
    if key is not None and _READERS[key[1]].match(text, key.end()):
        return False
    padding = 2 if text.endswith("==") else text.endswith("=")
    end = len(text) - padding
    if (end - at) % 4 == 1 or (padding and (len(text) - at) % 4):
        return False
    while at < end:
        run = alphabet.match(text, at, min(end, at + 10 * STEP_CHARS))
        if run is None:
            return False
        at = run.end()
        yield
    return True


@cache
def _escape_reader(begin: str) -> re.Pattern[str]:
    """Return the pattern of the rest of a key whose characters may be escaped."""
    return re.compile(rest_with_escapes(_READERS[begin].pattern), re.ASCII)


def _keys(text: str) -> Steps[str]:
    """Redact the keys in `text` that have one of `FORMS`, in short steps."""
    is_plain = "\\" not in text and "%" not in text
    beginning = _BEGINNING if is_plain else _ESCAPED_BEGINNING
    parts, last_end, at, end, hits = list[str](), 0, 0, STEP_CHARS, 0
    while at < len(text):
        match = beginning.search(text, at, end + LONGEST_BEGINNING)
        if match is None or match.start() >= end:
            at, end = max(at, end), end + STEP_CHARS
            yield
            continue
        reader = _READERS[match[1]] if is_plain else _escape_reader(unescape(match[1]))
        key = reader.match(text, match.end(), match.end() + MOST_KEY)
        at = match.start() + 1
        if key is not None:
            parts += text[last_end : match.start(1)], REMOVED
            at = last_end = key.end()
        hits += 1
        if not hits % STEP_HITS:
            yield
    return "".join([*parts, text[last_end:]]) if parts else text


def take_out(text: str, literal: str, read: Read, removed: str) -> Steps[str]:
    """Replace what `read` finds at occurrences of `literal`, in short steps for other work to run."""
    parts, last_end, at, hits, step_end = list[str](), 0, 0, 0, STEP_CHARS
    while at < len(text):
        end = at + 10 * STEP_CHARS + len(literal)
        at = text.find(literal, at, end)
        if at < 0:
            at = end - len(literal) + 1
            if at < len(text):
                yield
            continue
        span = read(text, at, last_end)
        at += 1
        if span is not None:
            parts += text[last_end : span[0]], removed
            at = last_end = span[1]
        hits += 1
        if hits == STEP_HITS or at >= step_end:
            hits, step_end = 0, at + STEP_CHARS
            yield
    return "".join([*parts, text[last_end:]]) if parts else text


def _value(n_chars: int, _: str, at: int, __: int) -> Span:
    return at, at + n_chars


def _web_token(text: str, at: int, last_end: int) -> Span | None:
    """Return the span of a JSON web token whose second part begins at `at`, or None if there is no token."""
    begin = max(last_end, at - MOST_HEADER, text.rfind(".", max(last_end, at - MOST_HEADER), at) + 1)
    run = _RUN.match(text[begin:at][::-1])
    begin = at - (run.end() if run else 0)
    header = text[begin:at]
    within = header.find("eyJ")
    while (
        within > 0
        and header[within - 1] in _ALNUM
        and not _SEQUENCE.fullmatch(text, begin - 1, begin + within)
    ):
        within = header.find("eyJ", within + 1)
    payload = _PAYLOAD.match(text, at + 4, at + MOST_KEY)
    if within < 0 or len(header) - within < LEAST_CHARS - 1 or payload is None:
        return None
    return begin + within, payload.end()


def _bot_token(text: str, at: int, last_end: int) -> Span | None:
    """Return the span of a Telegram bot token, if any: an id, a colon, and 35 characters from an A."""
    number = _BEFORE_COLON.match(text[max(last_end, at - 20) : at][::-1])
    end = _BOT.match(text, at + 2)
    return None if number is None or end is None else (at - number.end(), end.end())


def _client_secret(text: str, at: int, last_end: int) -> Span | None:
    """Return the span of a secret of Microsoft Entra, if any: three characters, a digit, `Q~`, about 32 more."""
    begin, end = at - 4, _CLIENT_SECRET.match(text, at + 2)
    if begin < last_end or not text[at - 1].isdigit() or end is None or not text[begin : at - 1].isascii():
        return None
    return None if (begin > 0 and text[begin - 1] in _ALNUM) or " " in text[begin:at] else (begin, end.end())


class _Url(NamedTuple):
    """Form of a URL in a text.

    Args:
        sign: its `@`.
        scheme: its `://`.
        colon: its `:`.
        never: pattern of characters that are not between its `://` and its `@`.
        rest: the rest of a password that contains an `@`, up to the next `@`.
    """

    sign: str
    scheme: re.Pattern[str]
    colon: re.Pattern[str]
    never: re.Pattern[str]
    rest: re.Pattern[str]


_PLAIN_URL = _Url(
    "@",
    re.compile(r":(?:\\{0,4}/){2}"),  # JSON may escape a slash
    re.compile(":"),
    re.compile(r"\s"),
    re.compile(r"[^\s/@\"'<>,;()]{0,256}@"),
)
_ENCODED_URL = _Url(
    "%40",
    re.compile("%3A%2F%2F", re.IGNORECASE),
    re.compile(":|%3A", re.IGNORECASE),
    re.compile(r"[\s/@\"'<>,;()&=?#|\\]"),
    re.compile(r"(?:(?!%2F|%40)[^\s/@\"'<>,;()&=?#|\\]){0,256}+%40", re.IGNORECASE),
)
"""URL inside the query of another one."""


def _password(url: _Url, text: str, at: int, last_end: int) -> Span | None:
    """Return the span of a URL's password before the `@` at `at`, if any. It may have a non-standard `/`."""
    low = max(last_end, at - MOST_PASSWORD)
    low = max(low, text.rfind(url.sign, low, at) + 1)
    begin = max((scheme.end() for scheme in url.scheme.finditer(text, low, at)), default=at)
    colon = url.colon.search(text, begin, at)
    if colon is None or colon.end() == at or url.never.search(text, begin, at):
        return None
    user = text[begin:at] if url is _PLAIN_URL else unquote(text[begin:at])
    name = user.partition(":")[0]
    if "/" in name or '"' in name or _PORT.match(user):
        return None  # a host, not a user: the `@` is in its path, or in the next string of JSON
    end = at
    while (rest := url.rest.match(text, end + len(url.sign), begin + MOST_PASSWORD)) is not None:
        end = rest.end() - len(url.sign)  # the password contains an `@`
    return (colon.end(), end)


def _pem(text: str, at: int, last_end: int) -> Span | None:
    begin = _PEM_BEGIN.match(text, at)
    if begin is None:
        return None
    end = _PEM_END.search(text, begin.end(), at + MOST_PEM)
    return at, end.end() if end else min(at + MOST_PEM, len(text))


_PLACES: tuple[tuple[str, Read], ...] = (
    (".eyJ", _web_token),
    (":A", _bot_token),
    ("Q~", _client_secret),
    ("-----BEGIN ", _pem),
    ("@", partial(_password, _PLAIN_URL)),
    ("%40", partial(_password, _ENCODED_URL)),
)

_MARKS = tuple(literal for literal, _ in _PLACES if literal != "@")

Redactor = Callable[[str], str]


class StreamRedactor:
    """Redactor of a streamed text that holds back possible secrets, which have no `boundary` characters."""

    def __init__(self, redact: Redactor = redact_secrets, boundary: str = " \t\n") -> None:
        self._redact, self._boundary = redact, boundary
        self._waiting: list[str] = []
        self._n_waiting = 0
        self._is_in_key = False

    def feed(self, piece: str) -> str:
        """Add the next chunk of the text, and return the redacted text that can be sent now.

        Text that is held back is searched again only if `piece` contains a boundary character.
        """
        self._waiting.append(piece)
        self._n_waiting += len(piece)
        if self._is_in_key:
            return self._leave_key()
        blanks = self._boundary if self._n_waiting < MOST_WAITING else " \t\n"
        return self._release(blanks) if any(map(piece.__contains__, blanks)) else ""

    def flush(self) -> str:
        """End the text, and return the redacted rest of it."""
        rest = "" if self._is_in_key else self._redact("".join(self._waiting))
        self._wait("")
        self._is_in_key = False
        return rest

    def _release(self, blanks: str) -> str:
        text = "".join(self._waiting)
        end = max(map(text.rfind, blanks)) + 1
        if (scheme := _SCHEME_AT_END.search(text, max(0, end - 7), end)) is not None:
            end = scheme.start()  # its token may follow
        if (perhaps := _PEM_PERHAPS.search(text, max(0, len(text) - _PEM_END_CHARS))) is not None:
            end = min(end, perhaps.start())
        for key in _PEM.finditer(text):
            if not _PEM_END.search(key[0], max(0, len(key[0]) - _PEM_END_CHARS)):
                # The key is not complete yet.
                released = self._redact(text[: key.start()]) + REMOVED
                self._is_in_key = True
                self._wait(text[key.start() :])
                return released
            end = key.start() if key.start() < end < key.end() else end
        self._wait(text[end:])
        return self._redact(text[:end])

    def _leave_key(self) -> str:
        """Drop the text of a PEM key up to the key's end, and continue with the text after it."""
        text = "".join(self._waiting)
        key_end = _PEM_END.search(text)
        if key_end is None:
            self._wait(text[-_PEM_END_CHARS:])
            return ""
        self._is_in_key = False
        self._wait("")
        return self.feed(text[key_end.end() :])

    def _wait(self, text: str) -> None:
        self._waiting, self._n_waiting = [text], len(text)
