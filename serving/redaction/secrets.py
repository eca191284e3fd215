"""Redaction of secrets in texts: the secrets of this process, and keys in well-known formats.

The forms come from gitleaks (version 8.30, MIT), limited to keys with a fixed prefix. Those of model
providers that gitleaks does not cover are added (decision 0073). Only distinctive forms are included, because
a word that looks random may also be a digest or a name.

Texts come from clients and may be megabytes long. One pattern finds where a key may begin, and the form of
that key is matched from there. No character is read more than a few times. Long work is split into steps
(`slices.py`).
"""

import re
from collections.abc import Callable, Iterable

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
"""Number of candidates that are checked in one step."""
MOST_HEADER = 8000
"""Maximum length of the header of a JSON web token, in characters."""
MOST_PASSWORD = 1024
"""Maximum number of characters between the `://` and the `@` of a URL with a password."""

_HEX, _WORD, _DASHED, _BASE64 = "[0-9A-Fa-f]", "[0-9A-Za-z]", r"[\w-]", r"[0-9A-Za-z+/]"
# Prefix of a key, and pattern of the rest. No minimum length exceeds that of the provider's shortest keys.
_FORMS: tuple[tuple[str, str], ...] = (
    ("pk_", rf"{_WORD}{{49}}"),  # Podium
    # Models.
    ("sk-", rf"{_DASHED}{{20,}}"),  # OpenAI, Anthropic, OpenRouter, DeepSeek, LangFuse
    ("csk-", rf"{_WORD}{{40,}}"),  # Cerebras
    ("gsk_", rf"{_WORD}{{40,}}"),  # Groq
    ("xai-", rf"{_WORD}{{40,}}"),
    ("AIza", rf"{_DASHED}{{35}}"),  # Google
    ("AQ.Ab", rf"{_DASHED}{{30,}}"),
    ("ya29.", rf"{_DASHED}{{20,}}(?:\.{_DASHED}+)*"),
    ("GOCSPX-", rf"{_DASHED}{{20,}}"),
    ("1//0", rf"{_DASHED}{{40,}}"),
    ("ABSK", rf"{_BASE64}{{40,}}={{0,2}}"),  # Amazon Bedrock
    ("bedrock-api-key-", r"[\w+/=-]{20,}"),
    ("nvapi-", rf"{_DASHED}{{20,}}"),  # NVIDIA
    ("pplx-", rf"{_WORD}{{20,}}"),  # Perplexity
    ("r8_", rf"{_WORD}{{20,}}"),  # Replicate
    ("hf_", rf"{_WORD}{{30,}}"),  # Hugging Face
    ("api_org_", rf"{_WORD}{{30,}}"),
    ("fw_", rf"{_WORD}{{20,}}"),  # Fireworks
    ("tgp_v1_", rf"{_DASHED}{{20,}}"),  # Together
    ("jina_", rf"{_DASHED}{{40,}}"),
    ("pcsk_", rf"{_DASHED}{{20,}}"),  # Pinecone
    ("lsv2_", rf"{_DASHED}{{20,}}"),  # LangSmith
    ("ls__", rf"{_WORD}{{32,}}"),
    ("tvly-", rf"{_DASHED}{{16,}}"),  # Tavily
    ("fc-", rf"{_HEX}{{32}}"),  # Firecrawl
    ("pa-", rf"{_DASHED}{{43}}"),  # Voyage
    ("e2b_", rf"{_HEX}{{40}}"),
    # Clouds.
    ("AKIA", r"[0-9A-Z]{16}"),  # AWS
    ("ASIA", r"[0-9A-Z]{16}"),
    ("ABIA", r"[0-9A-Z]{16}"),
    ("ACCA", r"[0-9A-Z]{16}"),
    ("LTAI", rf"{_WORD}{{16,}}"),  # Alibaba
    ("AccountKey=", rf"{_BASE64}{{20,}}={{0,2}}"),  # Azure
    ("SharedAccessKey=", rf"{_BASE64}{{20,}}={{0,2}}"),
    ("SharedSecretValue=", rf"{_BASE64}{{20,}}={{0,2}}"),
    ("sig=", r"[0-9A-Za-z%+/]{43,}={0,2}"),
    ("dop_v1_", rf"{_HEX}{{32,}}"),  # DigitalOcean
    ("doo_v1_", rf"{_HEX}{{32,}}"),
    ("dor_v1_", rf"{_HEX}{{32,}}"),
    ("dapi", rf"{_HEX}{{32}}(?:-\d)?"),  # Databricks
    ("HRKU-", rf"{_DASHED}{{30,}}"),  # Heroku
    ("fo1_", rf"{_DASHED}{{43}}"),  # Fly.io
    ("fm1a_", rf"{_BASE64}{{60,}}={{0,3}}"),
    ("fm1r_", rf"{_BASE64}{{60,}}={{0,3}}"),
    ("fm2_", rf"{_BASE64}{{60,}}={{0,3}}"),
    ("v1.0-", rf"{_HEX}{{24}}-{_HEX}{{100,}}"),  # Cloudflare
    ("nfp_", rf"{_WORD}{{36,}}"),  # Netlify
    ("sbp_", rf"{_HEX}{{40}}"),  # Supabase
    ("sb_secret_", rf"{_DASHED}{{20,}}"),
    ("tk-us-", rf"{_DASHED}{{48}}"),  # Scalingo
    ("tskey-", rf"[a-z]{{3,20}}-{_WORD}{{8,}}-{_WORD}{{16,}}"),  # Tailscale
    ("vcp_", rf"{_WORD}{{24,}}"),  # Vercel
    ("AQVN", rf"{_DASHED}{{35,}}"),  # Yandex
    ("sha256~", rf"{_DASHED}{{43}}"),  # OpenShift
    # Code and its tools.
    ("ghp_", rf"{_WORD}{{36,}}"),  # GitHub
    ("gho_", rf"{_WORD}{{36,}}"),
    ("ghu_", rf"{_WORD}{{36,}}"),
    ("ghs_", rf"{_WORD}{{36,}}"),
    ("ghr_", rf"{_WORD}{{36,}}"),
    ("github_pat_", r"\w{22,}"),
    ("glpat-", rf"{_DASHED}{{20,}}"),  # GitLab
    ("glrt-", rf"{_DASHED}{{20,}}"),
    ("glrtr-", rf"{_DASHED}{{20,}}"),
    ("gldt-", rf"{_DASHED}{{20,}}"),
    ("glptt-", rf"{_DASHED}{{20,}}"),
    ("glcbt-", rf"{_DASHED}{{20,}}"),
    ("glft-", rf"{_DASHED}{{20,}}"),
    ("glsoat-", rf"{_DASHED}{{20,}}"),
    ("glimt-", rf"{_DASHED}{{20,}}"),
    ("glagent-", rf"{_DASHED}{{20,}}"),
    ("gloas-", rf"{_DASHED}{{20,}}"),
    ("glffct-", rf"{_DASHED}{{20,}}"),
    ("GR1348941", rf"{_DASHED}{{20,}}"),
    ("ATATT3", r"[\w=-]{60,}"),  # Atlassian
    ("ATCTT3", r"[\w=-]{60,}"),
    ("ATBB", rf"{_WORD}{{32}}"),
    ("npm_", rf"{_WORD}{{36}}"),
    ("pypi-", rf"{_DASHED}{{50,}}"),
    ("rubygems_", rf"{_HEX}{{48}}"),
    ("CLOJARS_", rf"{_WORD}{{60}}"),
    ("oy2", r"[0-9a-z]{43}"),  # NuGet
    ("AKCp", rf"{_WORD}{{69}}"),  # Artifactory
    ("cmVmd", rf"{_WORD}{{59}}"),
    ("dckr_pat_", rf"{_DASHED}{{20,}}"),  # Docker
    ("dckr_oat_", rf"{_DASHED}{{20,}}"),
    ("CCIPAT_", rf"{_DASHED}{{20,}}"),  # CircleCI
    ("CCIPRJ_", rf"{_DASHED}{{20,}}"),
    ("API-", r"[0-9A-Z]{26}"),  # Octopus Deploy
    ("PMAK-", rf"{_HEX}{{24}}-{_HEX}{{34}}"),  # Postman
    ("pul-", rf"{_HEX}{{40}}"),  # Pulumi
    ("pnu_", rf"{_WORD}{{36}}"),  # Prefect
    ("sgp_", rf"(?:(?:{_HEX}{{16}}|local)_)?{_HEX}{{40}}"),  # Sourcegraph
    ("sntrys_", r"[\w+/=-]{40,}"),  # Sentry
    ("sntryu_", rf"{_HEX}{{64}}"),
    ("sqp_", rf"{_HEX}{{40}}"),  # SonarQube
    ("squ_", rf"{_HEX}{{40}}"),
    ("sqa_", rf"{_HEX}{{40}}"),
    ("lin_api_", rf"{_WORD}{{40}}"),  # Linear
    ("lin_oauth_", rf"{_WORD}{{40}}"),
    ("ntn_", rf"{_WORD}{{40,}}"),  # Notion
    ("secret_", rf"{_WORD}{{43}}"),
    ("figd_", rf"{_DASHED}{{40,}}"),  # Figma
    (
        "pat",
        rf"(?:{_WORD}{{14}}\.{_HEX}{{64}}|-(?:na|eu)1-{_HEX}{{8}}-[0-9A-Fa-f-]{{27}})",
    ),  # Airtable, HubSpot
    ("perm:", rf"{_BASE64}{{4,}}={{0,2}}\.{_BASE64}{{2,}}={{0,2}}\.{_WORD}{{20,}}"),  # JetBrains
    ("rdme_", r"[0-9a-z]{70}"),  # ReadMe
    ("tfp_", r"[\w.=-]{40,}"),  # Typeform
    # Headers.
    ("Bearer ", r"[\w.~+/-]{20,}={0,2}"),
    ("Basic ", rf"(?=[A-Za-z+/]*\d){_BASE64}{{16,}}={{0,2}}"),
    # Secret managers.
    ("hvs.", rf"{_DASHED}{{20,}}"),  # HashiCorp
    ("hvb.", rf"{_DASHED}{{20,}}"),
    ("hvr.", rf"{_DASHED}{{20,}}"),
    ("dp.pt.", rf"{_WORD}{{40,}}"),  # Doppler
    ("dp.st.", r"[\w.-]{40,}"),
    ("dp.sa.", rf"{_WORD}{{40,}}"),
    ("dp.ct.", rf"{_WORD}{{40,}}"),
    ("ops_eyJ", rf"{_BASE64}{{100,}}={{0,3}}"),  # 1Password
    ("A3-", r"[0-9A-Z]{6}-[0-9A-Z-]{11,13}-[0-9A-Z]{5}-[0-9A-Z]{5}-[0-9A-Z]{5}"),
    ("AGE-SECRET-KEY-1", r"[0-9A-Z]{58}"),
    ("p8e-", r"[0-9a-z]{32}"),  # Adobe
    # Messages.
    ("xox", rf"[abceoprs](?:-|\.xox[bp]-){_DASHED}{{10,}}"),  # Slack
    ("xapp-", rf"\d-{_DASHED}{{10,}}"),
    ("hooks.slack.com/", r"(?:services|workflows|triggers)/[\w/+-]{20,}"),
    ("hooks.slack-gov.com/", r"(?:services|workflows|triggers)/[\w/+-]{20,}"),
    ("discord.com/api/webhooks/", rf"\d+/{_DASHED}{{40,}}"),
    ("discordapp.com/api/webhooks/", rf"\d+/{_DASHED}{{40,}}"),
    ("webhook.office.com/webhookb2/", r"[\w@/-]{40,}"),  # Teams
    ("SG.", rf"{_DASHED}{{16,}}\.{_DASHED}{{16,}}"),  # SendGrid
    ("xkeysib-", rf"{_HEX}{{64}}-{_WORD}{{16}}"),  # Brevo
    ("key-", rf"{_HEX}{{32}}"),  # Mailgun
    ("pubkey-", rf"{_HEX}{{32}}"),
    ("SK", rf"{_HEX}{{32}}"),  # Twilio
    # Money and goods.
    ("sk_", rf"(?:(?:live|test|prod)_{_WORD}{{16,}}|{_WORD}{{40,}})"),  # Stripe, ElevenLabs, Novita
    ("rk_", rf"(?:live|test|prod)_{_WORD}{{16,}}"),
    ("whsec_", r"[\w+/-]{20,}={0,2}"),
    ("sq0", rf"(?:atp|csp|idp)-{_DASHED}{{22,}}"),  # Square
    ("EAAA", rf"{_DASHED}{{50,}}"),
    ("EAAM", rf"{_WORD}{{100,}}"),  # Facebook
    ("EAAC", rf"{_WORD}{{100,}}"),
    ("shpat_", rf"{_HEX}{{32}}"),  # Shopify
    ("shpca_", rf"{_HEX}{{32}}"),
    ("shppa_", rf"{_HEX}{{32}}"),
    ("shpss_", rf"{_HEX}{{32}}"),
    ("shippo_", rf"(?:live|test)_{_HEX}{{40}}"),
    ("FLWSECK", r"(?:_TEST)?-[0-9A-Za-z-]{12,}"),  # Flutterwave
    ("duffel_", r"(?:live|test)_[\w=-]{43}"),
    ("EZAK", rf"{_WORD}{{54}}"),  # EasyPost
    ("EZTK", rf"{_WORD}{{54}}"),
    ("amzn.mws.", r"[0-9a-f-]{36}"),
    ("access_token$production$", rf"[0-9a-z]{{16}}\${_HEX}{{32}}"),  # PayPal
    # Databases and measurements.
    ("pscale_", r"(?:tkn|oauth|pw)_[\w=.-]{32,}"),  # PlanetScale
    ("4b1d", rf"{_WORD}{{38}}"),  # ClickHouse
    ("dt0c01.", rf"{_WORD}{{24}}\.{_WORD}{{64}}"),  # Dynatrace
    ("glc_", rf"{_BASE64}{{32,}}={{0,2}}"),  # Grafana
    ("glsa_", rf"{_WORD}{{32}}_{_HEX}{{8}}"),
    ("eyJrIjoi", rf"{_BASE64}{{60,}}={{0,2}}"),
    ("NRAK-", rf"{_WORD}{{27}}"),  # New Relic
    ("NRII-", rf"{_DASHED}{{32}}"),
    ("NRJS-", rf"{_HEX}{{19}}"),
    ("phc_", rf"{_WORD}{{40,}}"),  # PostHog
    ("phx_", rf"{_WORD}{{40,}}"),
    ("fio-u-", r"[\w=-]{64}"),  # Frame.io
    ("ico-", rf"{_WORD}{{32}}"),  # Infracost
)


def _any_of(words: Iterable[str]) -> str:
    """Build a pattern that matches any of `words` and reads each character only once."""
    rest = dict[str, list[str]]()
    for word in words:
        if not word:
            return ""
        rest.setdefault(word[0], []).append(word[1:])
    branches = [re.escape(first) + _any_of(after) for first, after in rest.items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


_READERS = {begin: re.compile(rest, re.ASCII) for begin, rest in _FORMS}
LONGEST_BEGINNING = max(map(len, _READERS)) + 6
_BEGINNING = re.compile(rf"(?<![0-9A-Za-z])({_any_of(_READERS)})")
_ESCAPED_BEGINNING = re.compile(
    rf"(?:\\(?:[nrtbf]|u[0-9A-Fa-f]{{4}})|%[0-9A-Fa-f]{{2}})({_any_of(_READERS)})"
)
"""Prefix of a key directly after an escape sequence of JSON or a URL, such as `\\n` or `%20`. The sequence
ends with a letter or digit, so `_BEGINNING` does not match there."""
_ALNUM = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_PICTURE = re.compile(r"data:[\w/+.-]{1,100};base64,", re.ASCII)
_BASE64_RUN = re.compile(r"[0-9A-Za-z+/]*={0,2}", re.ASCII)
_BEFORE_COLON = re.compile(r"\d{5,16}(?:(?=tob(?![0-9A-Za-z]))|(?![0-9A-Za-z]))")
"""Id of a Telegram bot, reversed. In URLs, `bot` may precede the id."""
_BOT = re.compile(r"[\w-]{33,36}(?![\w-])", re.ASCII)
_RUN = re.compile(r"[\w-]*", re.ASCII)
_PAYLOAD = re.compile(r"[\w-]{5,}(?:\.[\w-]*)?", re.ASCII)
_CLIENT_SECRET = re.compile(r"[\w~.-]{31,34}", re.ASCII)
_PORT = re.compile(r"(?:[^\s/:@]*\.[^\s/:@]*|localhost|\[[^\s/@]*\]):\d{1,5}(?=/)")
_REST = re.compile(r"[^\s/@\"'<>,;()]{0,256}@")
_KEY = r"(?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
_PEM_BEGIN, _PEM_END = re.compile(rf"-----BEGIN {_KEY}"), re.compile(rf"-----END {_KEY}")
_PEM = re.compile(rf"-----BEGIN {_KEY}.*?(?:{_PEM_END.pattern}|\Z)", re.DOTALL)
_PEM_PERHAPS = re.compile(r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,6}[A-Z0-9]{0,20}-{0,5}\Z")
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
    if len(text) < LEAST_CHARS or (yield from _is_picture(text)):
        return text
    is_long = len(text) > STEP_CHARS
    for value in tuple(_secrets):
        if value in text:
            text = text.replace(value, REMOVED)
        if is_long:
            yield
    text = yield from _keys(text, _BEGINNING)
    if "\\" in text or "%" in text:
        text = yield from _keys(text, _ESCAPED_BEGINNING)
    for literal, read in _PLACES:
        if literal == "@" and "://" not in text:
            continue
        text = yield from take_out(text, literal, read, REMOVED)
    return text


def _is_picture(text: str) -> Steps[bool]:
    """Return whether `text` is a base64 file, which is not searched for keys."""
    begin = _PICTURE.match(text) if text.startswith("data:") else None
    if begin is None:
        return False
    at = begin.end()
    while at < len(text):
        run = _BASE64_RUN.match(text, at, at + 10 * STEP_CHARS)
        if run is None or run.end() == at:
            return False
        at = run.end()
        yield
    return True


def _keys(text: str, beginning: re.Pattern[str]) -> Steps[str]:
    """Redact the keys in `text` that have one of `_FORMS`, in short steps."""
    parts, last_end, at, end, hits = list[str](), 0, 0, STEP_CHARS, 0
    while at < len(text):
        match = beginning.search(text, at, end + LONGEST_BEGINNING)
        if match is None or match.start() >= end:
            at, end = max(at, end), end + STEP_CHARS
            yield
            continue
        key = _READERS[match[1]].match(text, match.end())
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
    parts, last_end, at, hits = list[str](), 0, 0, 0
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
        if not hits % STEP_HITS:
            yield
    return "".join([*parts, text[last_end:]]) if parts else text


def _web_token(text: str, at: int, last_end: int) -> Span | None:
    """Return the span of a JSON web token whose second part begins at `at`, or None if there is no token."""
    begin = max(last_end, at - MOST_HEADER, text.rfind(".", max(last_end, at - MOST_HEADER), at) + 1)
    run = _RUN.match(text[begin:at][::-1])
    header = text[at - (run.end() if run else 0) : at]
    within = header.find("eyJ")
    while within > 0 and header[within - 1] in _ALNUM:
        within = header.find("eyJ", within + 1)
    payload = _PAYLOAD.match(text, at + 4)
    if within < 0 or len(header) - within < LEAST_CHARS - 1 or payload is None:
        return None
    return at - len(header) + within, payload.end()


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


def _password(text: str, at: int, last_end: int) -> Span | None:
    """Return the span of a URL's password before the `@` at `at`, if any. It may have a non-standard `/`."""
    low = max(last_end, at - MOST_PASSWORD)
    begin = text.rfind("://", max(low, text.rfind("@", low, at) + 1), at)
    if begin < 0:
        return None
    begin += 3
    colon = text.find(":", begin, at)
    user = text[begin:at]
    if (
        colon < 0
        or colon + 1 == at
        or len(user.split(maxsplit=1)) != 1
        or user[0].isspace()
        or user[-1].isspace()
    ):
        return None
    if "/" in user[: colon - begin] or _PORT.match(user):
        return None  # a host and its port, not a user: the `@` is in the path
    end = at
    while (rest := _REST.match(text, end + 1, begin + MOST_PASSWORD)) is not None:
        end = rest.end() - 1  # the password contains an `@`
    return (colon + 1, end)


def _pem(text: str, at: int, last_end: int) -> Span | None:
    begin = _PEM_BEGIN.match(text, at)
    if begin is None:
        return None
    end = _PEM_END.search(text, begin.end())
    return at, end.end() if end else len(text)


_PLACES: tuple[tuple[str, Read], ...] = (
    (".eyJ", _web_token),
    (":A", _bot_token),
    ("Q~", _client_secret),
    ("-----BEGIN ", _pem),
    ("@", _password),
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
