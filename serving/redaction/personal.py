"""Personal data that has a form: e-mail addresses, telephone numbers with their country code, numbers of cards
and of bank accounts. Names and streets have none, and stay.

Numbers are looked up and checked by libraries: phonenumbers (Google's libphonenumber) and python-stdnum.
"""

import re
from collections.abc import Callable

from conductor.model.permit import Permit
from serving.redaction.secrets import Redactor, redact_secrets

MOST_CHECKED = 500
"""Different telephone numbers in all texts of one request; what has the form of one after that is taken out unchecked. A
check takes a tenth of a millisecond, a millisecond at worst, in which the router does nothing else, and a stranger's
texts have room for 300,000 of them.
"""
MOST_CHECKED_IN_FILE = 5_000
"""The same of a file, which is looked through beside everything else."""
NUMBERS_A_PHONE = 5
"""As many numbers of cards, and of accounts, may be checked for each telephone number: that is quicker."""
# Begins where a word does, and gives nothing back: one look at each character, however long the text.
_EMAIL = re.compile(r"(?<![\w.%+-])[\w.%+-]++@[\w-]++(?:\.[\w-]++)++")
_DIGIT = re.compile(r"\d")
_CARD = re.compile(r"(?<!\d)(?:\d[ -]?){12,18}\d(?!\d)")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b")
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
        text = redact_secrets(text)
        if "@" in text:
            text = _EMAIL.sub("[e-mail address removed]", text)
        if _DIGIT.search(text) is None:
            return text
        text = _IBAN.sub(self._account, text)
        text = _PHONE.sub(self._phone, text)
        return _CARD.sub(self._card, text)


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

    def __call__(self, found: re.Match[str]) -> str:
        text = found[0]
        if text not in self._checked:
            if len(self._checked) >= self._most:
                return self._removed
            self._checked[text] = self._check(text, self._removed)
        return self._checked[text]


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
