"""Redaction of personal data with a recognisable form: e-mail addresses, telephone numbers with a country
code, card numbers and bank account numbers. Names and street addresses have no such form and are not
redacted.

Numbers are found and validated by libraries: phonenumbers (Google's libphonenumber) and python-stdnum.
"""

import hashlib
import re
from collections.abc import Callable

from serving.redaction.secrets import is_picture, redact_secrets, secrets_in_steps, take_out
from serving.redaction.slices import Steps, finish

MOST_CHECKED = 500
"""Maximum number of different telephone numbers that are validated in all texts of one request. Further
candidates are redacted without validation. Validating one takes 0.1 ms (1 ms at worst) and blocks the router,
and a client's texts can contain 300,000 candidates."""
MOST_CHECKED_IN_FILE = 5_000
"""The same limit for a file, which is redacted in the background."""
NUMBERS_A_PHONE = 5
"""Factor by which the limits for card numbers and for account numbers exceed the one for telephone numbers,
because they are quicker to validate."""
# Each form has a limited length and begins with a character that is quick to find. So one step of `_numbers`
# reads `STEP_CHARS` characters of the text and at most `LONGEST` more.
LONGEST = 128
"""Maximum length of a number, including the characters directly before and after it."""
STEP_CHARS = 20_000
"""Number of characters that are searched in one step."""
_ANY = re.compile(r"[\d@]")
_LOCAL = re.compile(r"[\w.%+-]{1,320}")
_DOMAIN = re.compile(r"[\w-]{1,255}+(?:\.[\w-]{1,255}+){1,16}+")
_CARD = re.compile(r"\d(?<!\d\d)(?:[ -]?\d){12,18}(?!\d)")
_IBAN = re.compile(r"[A-Z](?<!\w[A-Z])[A-Z]\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b")
_PHONE = re.compile(r"[+＋][(\d][\d\s()./\u2010-\u2015-]{5,40}(?:\w{1,2})?")
"""Candidate for a telephone number, with up to two more characters: letters there show that it is not one."""


class PersonalDataRedactor:
    """Redactor of secrets and personal data for all texts of one request or one file.

    The number of candidates that it validates is limited for all these texts together.
    """

    def __init__(self, most_checked: int = MOST_CHECKED) -> None:
        most = most_checked * NUMBERS_A_PHONE
        self._account = _Checked(_without_account, "[account number removed]", most)
        self._phone = _Checked(_without_phone, "[telephone number removed]", most_checked)
        self._card = _Checked(_without_card, "[card number removed]", most)

    def __call__(self, text: str) -> str:
        """Return `text` without personal data and secrets, or `text` itself if it has none."""
        return finish(self.steps(text)) if _ANY.search(text) else redact_secrets(text)

    def steps(self, text: str) -> Steps[str]:
        """Redact `text` as `__call__` does, in short steps between which other work can run."""
        if (yield from is_picture(text)):
            return text
        text = yield from secrets_in_steps(text)
        text = yield from take_out(text, "@", _email, "[e-mail address removed]")
        text = yield from _numbers(text, _IBAN, self._account)
        if "+" in text or "＋" in text:
            text = yield from _numbers(text, _PHONE, self._phone)
        return (yield from _numbers(text, _CARD, self._card))


def name_on_record(name: str) -> str:
    """Return a client's key, such as an `Idempotency-Key`, as Podium stores it: a digest if it has personal
    data or a secret, or else unchanged. Equal keys stay equal, and different ones different.
    """
    if PersonalDataRedactor()(name) == name:
        return name
    return f"sha256:{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _email(text: str, at: int, last_end: int) -> tuple[int, int] | None:
    """Return the span of the e-mail address whose `@` is at `at`, or None if there is no address."""
    domain = _DOMAIN.match(text, at + 1)
    local = _LOCAL.match(text[max(last_end, at - 320) : at][::-1]) if domain else None
    return None if local is None or domain is None else (at - local.end(), domain.end())


def _numbers(text: str, pattern: re.Pattern[str], check: "_Checked") -> Steps[str]:
    """Replace each match of `pattern` in `text` by the result of `check`, in short steps."""
    parts, last_end, at, end = list[str](), 0, 0, STEP_CHARS
    while at < len(text):
        match = pattern.search(text, at, end + LONGEST)
        if match is None or match.start() >= end:
            at, end = max(at, end), end + STEP_CHARS
            yield
            continue
        at = match.end()
        if (redacted := check(match[0])) is not match[0] and redacted != match[0]:
            parts += text[last_end : match.start()], redacted
            last_end = at
        if check.is_dear:
            yield
    return "".join([*parts, text[last_end:]]) if parts else text


class _Checked:
    """Function that validates matches of a pattern once each, at most `most`, and redacts the valid and
    further ones.
    """

    def __init__(self, check: Callable[[str, str], str], removed: str, most: int) -> None:
        self._check, self._removed, self._most = check, removed, most
        self._checked = dict[str, str]()
        self.is_dear = False
        """True if the latest match had to be validated, which is slow."""

    def __call__(self, text: str) -> str:
        self.is_dear = text not in self._checked and len(self._checked) < self._most
        if self.is_dear:
            self._checked[text] = self._check(text, self._removed)
        return self._checked.get(text, self._removed)


def _without_card(text: str, removed: str) -> str:
    from stdnum import luhn

    digits = re.sub(r"\D", "", text)
    return removed if luhn.is_valid(digits) and digits.strip("0") else text


def _without_account(text: str, removed: str) -> str:
    from stdnum import iban

    return removed if iban.is_valid(text) else text


def _without_phone(text: str, removed: str) -> str:
    from phonenumbers import PhoneNumberMatcher

    match = next(iter(PhoneNumberMatcher(text, None)), None)
    return text if match is None else text[: match.start] + removed + text[match.end :]
