"""Amounts per time, and amounts for another number of people, for the calculator."""

import re
from decimal import Decimal
from fractions import Fraction

from serving.workers.programs.expressions import NUMBER, approximate, read_number, show
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, pattern

_PER = {("day", "week"): 7, ("week", "year"): 52, ("month", "year"): 12, ("day", "year"): 365}
"""Number of the first unit in the second. A month has no exact number of days or weeks."""
_CURRENCIES = r"dollars?|euros?|pounds?|bucks|francs?|yen|rupees"
_UNIT = r"hour|day|week|month|year"
_MONEY = rf"(?P<sign>[$€£])?(?P<each>{NUMBER})(?: (?P<unit>{_CURRENCIES}))?"
_WHO = r"(?:i|you|we|he|she|they|someone)"
_VERB = r"(?:saves?|earns?|spends?|pays?|makes?|gets?|puts? (?:aside|away)|sets? aside)"
_ASK = (
    rf"(?:how much|what)(?: money)? (?:is that|is it|(?:do|does|will|would|can) (?:{_WHO}|it|that) (?:{_VERB}|have|be|cost)(?: saved)?)"
    r"(?: in total| altogether)?"
)
_LONG = rf"(?P<n>an?|one|{NUMBER}) (?P<long>{_UNIT})s?"


def _number(text: str) -> Fraction:
    return Fraction(1) if text.casefold() in ("a", "an") else read_number(text)


def _amount(match: re.Match[str]) -> ExactAnswer:
    """Answer an amount per time, such as 50 dollars a week, after a longer time."""
    short, long = match["short"].casefold(), match["long"].casefold()
    n_short = 1 if short == long else _PER.get((short, long))
    if n_short is None:
        raise NotForProgram(f"The program does not know how many times a {short} fits into a {long}.")
    total = _number(match["n"]) * n_short * read_number(match["each"])
    number = (
        f"{Decimal(total.numerator) / total.denominator:,.2f}"
        if total.denominator != 1
        else f"{total.numerator:,}"
    )
    if match["sign"]:
        value = f"{match['sign']}{number}"
    else:
        value = f"{number} {match['unit']}" if match["unit"] else number
    return ExactAnswer(f"That is {value}.", value)


def _proportion(match: re.Match[str]) -> ExactAnswer:
    """Answer how much of an ingredient another number of people needs."""
    first, other = read_number(match["first"]), read_number(match["other"])
    if first <= 0 or other <= 0:
        raise NotForProgram("The numbers of people must be above zero.")
    total = read_number(match["each"]) * other / first
    number = show(total) if not show(total).startswith("about") else f"about {approximate(total)}"
    value = f"{number} {match['thing']}"
    return ExactAnswer(f"For {show(other)} {match['people2']}, that is {value}.", value)


_PEOPLE = r"(?:people|persons|servings|portions|guests)"
RATES: tuple[Rule, ...] = (
    (pattern(rf"(?:if )?{_WHO} {_VERB} {_MONEY} (?:an?|per|each|every) (?P<short>{_UNIT})[.,]? {_ASK} (?:in|after|over|for|per) {_LONG}"), _amount),
    (pattern(rf"(?:if )?{_WHO} {_VERB} {_MONEY} (?:an?|per|each|every) (?P<short>{_UNIT})(?:[.,]? (?:and|for)(?: i| he| she| we| they)?(?: works?)?(?: for)?) {_LONG}[.,]? {_ASK}"), _amount),
    (pattern(rf"(?:if )?(?:an?|the|my|this) [a-z]+(?: [a-z]+)? (?:for|that serves|serves) (?P<first>{NUMBER})(?: {_PEOPLE})?(?: and)? (?:needs|uses|calls for|takes|requires) (?P<each>{NUMBER}) ?(?P<thing>[a-z]+(?: of [a-z]+)?)[.,;]? (?:how (?:much|many)|what)(?: [a-z]+)?(?: (?:do i need|do you need|do we need|are needed|is needed|would i need))? for (?P<other>{NUMBER})(?: (?P<people2>{_PEOPLE}))(?: do (?:i|you|we) need)?"), _proportion),
)  # fmt: skip
