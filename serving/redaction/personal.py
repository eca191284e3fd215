"""Personal data that has a form: e-mail addresses, telephone numbers with their country code, numbers of cards
and of bank accounts. Names and streets have none, and stay.

Numbers are looked up and checked by libraries: phonenumbers (Google's libphonenumber) and python-stdnum.
"""

import re
from collections.abc import Callable

from conductor.model.terms import Permit
from serving.redaction.secrets import Redactor, redact_secrets, secrets_in_steps, take_out
from serving.redaction.slices import Steps, finish

MOST_CHECKED = 500
"""Different telephone numbers in all texts of one request; what has the form of one after that is taken out unchecked. A
check takes a tenth of a millisecond, a millisecond at worst, in which the router does nothing else, and a stranger's
texts have room for 300,000 of them.
"""
MOST_CHECKED_IN_FILE = 5_000
"""The same of a file, which is looked through beside everything else."""
NUMBERS_A_PHONE = 5
"""As many numbers of cards, and of accounts, may be checked for each telephone number: that is quicker."""
# Each form begins with a character that is found quickly, and ends after so many: what is looked at in one step
# (`_numbers`) is a part of the text and `LONGEST` characters more.
LONGEST = 128
"""Of a number, and of what stands right before and after it."""
STEP_CHARS = 20_000
"""Looked at in one step."""
_ANY = re.compile(r"[\d@]")
_LOCAL = re.compile(r"[\w.%+-]{1,320}")
_DOMAIN = re.compile(r"[\w-]{1,255}+(?:\.[\w-]{1,255}+){1,16}+")
_CARD = re.compile(r"\d(?<!\d\d)(?:[ -]?\d){12,18}(?!\d)")
_IBAN = re.compile(r"[A-Z](?<!\w[A-Z])[A-Z]\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b")
_PHONE = re.compile(r"[+＋][(\d][\d\s()./\u2010-\u2015-]{5,40}(?:\w{1,2})?")
"""What a telephone number is found in, and a letter after it, which tells that it is none."""


class PersonalDataRedactor:
    """A `Redactor` for all texts of one request, or of one file: together they have so many checks.

    Args:
        most_checked: telephone numbers; see `MOST_CHECKED`.
    """

    def __init__(self, most_checked: int = MOST_CHECKED) -> None:
        most = most_checked * NUMBERS_A_PHONE
        self._account = _Checked(_without_account, "[account number removed]", most)
        self._phone = _Checked(_without_phone, "[telephone number removed]", most_checked)
        self._card = _Checked(_without_card, "[card number removed]", most)

    def __call__(self, text: str) -> str:
        """`text` without personal data and without secrets; itself where it has none."""
        return finish(self.steps(text)) if _ANY.search(text) else redact_secrets(text)

    def steps(self, text: str) -> Steps[str]:
        """As a call, in steps."""
        text = yield from secrets_in_steps(text)
        text = yield from take_out(text, "@", _email, "[e-mail address removed]")
        text = yield from _numbers(text, _IBAN, self._account)
        if "+" in text or "＋" in text:
            text = yield from _numbers(text, _PHONE, self._phone)
        return (yield from _numbers(text, _CARD, self._card))


def _email(text: str, at: int, done: int) -> tuple[int, int] | None:
    """The place of the address around the `@` at `at`."""
    domain = _DOMAIN.match(text, at + 1)
    local = _LOCAL.match(text[max(done, at - 320) : at][::-1]) if domain else None
    return None if local is None or domain is None else (at - local.end(), domain.end())


def _numbers(text: str, pattern: re.Pattern[str], check: "_Checked") -> Steps[str]:
    """`text` with what `check` gives for each match of `pattern`, in steps."""
    parts, done, at, end = list[str](), 0, 0, STEP_CHARS
    while at < len(text):
        found = pattern.search(text, at, end + LONGEST)
        if found is None or found.start() >= end:
            at, end = max(at, end), end + STEP_CHARS
            yield
            continue
        at = found.end()
        if (kept := check(found[0])) is not found[0] and kept != found[0]:
            parts += text[done : found.start()], kept
            done = at
        if check.is_dear:
            yield
    return "".join([*parts, text[done:]]) if parts else text


def redactor_of(permit: Permit) -> Redactor:
    """What takes out of the texts of one request what may not be kept, traced or logged of them."""
    return PersonalDataRedactor() if permit.hides_personal_data else redact_secrets


class _Checked:
    """What stands for a match: the first different ones are checked.

    Args:
        check: gives a match without what is to be taken out, given what to put there.
        removed: what to put there.
        most: are checked.
    """

    def __init__(self, check: Callable[[str, str], str], removed: str, most: int) -> None:
        self._check, self._removed, self._most = check, removed, most
        self._checked = dict[str, str]()
        self.is_dear = False
        """The latest match had to be looked up."""

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
