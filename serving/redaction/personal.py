"""Personal data that has a form: e-mail addresses, telephone numbers with their country code, numbers of cards
and of bank accounts. Names and streets have none, and stay.

Numbers are looked up and checked by libraries: phonenumbers (Google's libphonenumber) and python-stdnum.
"""

import re
from collections.abc import Callable

from conductor.model.permit import Permit
from serving.redaction.secrets import Redactor, redact_secrets

MOST_CHECKED = 1000
"""Of each sort in one text; what has its form after that is taken out unchecked. A check takes up to a tenth of
a millisecond, in which the router does nothing else, and a stranger's text has room for 300,000 of them.
"""
# Begins where a word does, and gives nothing back: one look at each character, however long the text.
_EMAIL = re.compile(r"(?<![\w.%+-])[\w.%+-]++@[\w-]++(?:\.[\w-]++)++")
_DIGIT = re.compile(r"\d")
_CARD = re.compile(r"(?<!\d)(?:\d[ -]?){12,18}\d(?!\d)")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b")
_PHONE = re.compile(r"[+＋][(\d][\d\s()./\u2010-\u2015-]{5,40}(?:\w{1,2})?")
"""What a telephone number is found in, and a letter after it, which tells that it is none."""


def redact_personal_data(text: str) -> str:
    """`text` without personal data and without secrets; itself where it has none."""
    text = redact_secrets(text)
    if "@" in text:
        text = _EMAIL.sub("[e-mail address removed]", text)
    if _DIGIT.search(text) is None:
        return text
    text = _IBAN.sub(_Checked(_without_account, "[account number removed]"), text)
    text = _PHONE.sub(_Checked(_without_phone, "[telephone number removed]"), text)
    return _CARD.sub(_Checked(_without_card, "[card number removed]"), text)


def redactor_of(permit: Permit) -> Redactor:
    """What takes out of a text what may not be kept, traced or logged of it."""
    return redact_personal_data if permit.hides_personal_data else redact_secrets


class _Checked:
    """What stands for a match: the first ones are checked.

    Args:
        check: gives a match without what is to be taken out, given what to put there.
        removed: what to put there.
    """

    def __init__(self, check: Callable[[str, str], str], removed: str) -> None:
        self._check, self._removed, self._n_checked = check, removed, 0

    def __call__(self, found: re.Match[str]) -> str:
        self._n_checked += 1
        return self._check(found[0], self._removed) if self._n_checked <= MOST_CHECKED else self._removed


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
