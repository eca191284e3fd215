"""Personal data that has a form: e-mail addresses, telephone numbers with their country code, numbers of cards
and of bank accounts. Names and streets have none, and stay.

Numbers are looked up and checked by libraries: phonenumbers (Google's libphonenumber) and python-stdnum.
"""

import re

from serving.redaction.secrets import redact_secrets

_EMAIL = re.compile(r"[\w.%+-]+@[\w-]+(?:\.[\w-]+)+")
_CARD = re.compile(r"(?<!\d)(?:\d[ -]?){12,18}\d(?!\d)")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b")


def redact_personal_data(text: str) -> str:
    """`text` without personal data and without secrets; itself where it has none."""
    text = redact_secrets(text)
    if "@" in text:
        text = _EMAIL.sub("[e-mail address removed]", text)
    if not any(map(str.isdigit, text)):
        return text
    text = _IBAN.sub(_account, text)
    if "+" in text:
        text = _without_phones(text)
    return _CARD.sub(_card, text)


def _card(found: re.Match[str]) -> str:
    from stdnum import luhn

    digits = re.sub(r"\D", "", found[0])
    return "[card number removed]" if luhn.is_valid(digits) and digits.strip("0") else found[0]


def _account(found: re.Match[str]) -> str:
    from stdnum import iban

    return "[account number removed]" if iban.is_valid(found[0]) else found[0]


def _without_phones(text: str) -> str:
    from phonenumbers import PhoneNumberMatcher

    kept, end = list[str](), 0
    for match in PhoneNumberMatcher(text, None):
        kept += [text[end : match.start], "[telephone number removed]"]
        end = match.end
    return "".join([*kept, text[end:]])
