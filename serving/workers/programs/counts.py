"""Counts for the converter that are no units of measurement: items of a dozen, months of a year, cents of a dollar."""

import re
from fractions import Fraction

from serving.workers.programs.expressions import NUMBER, compute, show
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, pattern

_PLAIN_COUNTS = {
    ("month", "year"): 12, ("year", "decade"): 10, ("year", "century"): 100, ("year", "millennium"): 1000,
    ("decade", "century"): 10, ("century", "millennium"): 10, ("season", "year"): 4, ("piece", "dozen"): 12,
    ("egg", "dozen"): 12, ("item", "dozen"): 12, ("quarter", "whole"): 4, ("half", "whole"): 2, ("third", "whole"): 3,
    ("day", "leap year"): 366, ("day", "common year"): 365, ("quarter", "year"): 4, ("month", "quarter"): 3,
    ("cent", "euro"): 100, ("cent", "dollar"): 100, ("cent", "us dollar"): 100, ("penny", "pound"): 100,
    ("penny", "british pound"): 100, ("dime", "dollar"): 10, ("nickel", "dollar"): 20, ("quarter", "dollar"): 4,
    ("ten", "hundred"): 10, ("hundred", "thousand"): 10, ("thousand", "million"): 1000, ("million", "billion"): 1000,
    ("ten", "thousand"): 100, ("day", "weekend"): 2, ("day", "fortnight"): 14, ("day", "working week"): 5,
    ("zero", "million"): 6, ("zero", "thousand"): 3, ("zero", "billion"): 9, ("year", "score"): 20,
}  # fmt: skip
"""Numbers that Pint does not convert: how many of the first make one of the second."""
_CALENDAR = {"month": 1, "quarter": 3, "year": 12, "decade": 120, "century": 1200, "millennium": 12000}
"""Units of the calendar, in months."""
_SINGULAR = {
    "centuries": "century",
    "millennia": "millennium",
    "halves": "half",
    "pence": "penny",
    "pennies": "penny",
    "zeroes": "zero",
    "feet": "foot",
    "inches": "inch",
}
_COUNTED = "|".join(sorted({f"{name}" for pair in _PLAIN_COUNTS for name in pair}, key=len, reverse=True))
_CALENDAR_NAMES = "months?|quarters?|years?|decades?|century|centuries|millennium|millennia"


def amount_of(text: str | None) -> Fraction:
    """Return the number in `text`. Nothing, or an article, is 1."""
    return (
        Fraction(1)
        if (text or "").strip().casefold() in ("", "a", "an")
        else compute(str(text).removesuffix(" of"))[0]
    )


def _plain_count(match: re.Match[str]) -> ExactAnswer:
    part, whole = (_singular(match[name]) for name in ("part", "whole"))
    count = _PLAIN_COUNTS.get((part, whole))
    if (part, whole) == ("day", "year"):
        return ExactAnswer("A year has 365 days; a leap year has 366.")
    if (part, whole) == ("week", "year"):
        return ExactAnswer("A year has 52 weeks and one day, or two days in a leap year.")
    if count is None:
        raise NotForProgram(f"The program does not know how many {match['part']} make one {whole}.")
    number = "half" if (match["number"] or "").casefold().startswith("half") else match["number"]
    value = amount_of(number) * count
    if number == "half":
        return ExactAnswer(f"Half a {whole} has {show(value)} {match['part'].casefold()}.", show(value))
    verb = "has" if value == count else "have"
    whole = whole.replace("british", "British").replace("us ", "US ")
    name = match["whole"] if verb == "have" else f"{'An' if whole[0] in 'aeio' else 'A'} {whole}"
    start = name if verb == "has" else f"{show(amount_of(match['number']))} {name}"
    return ExactAnswer(f"{start} {verb} {show(value)} {match['part'].casefold()}.", show(value))


def _singular(name: str) -> str:
    name = " ".join(name.casefold().split())
    units = {each for pair in _PLAIN_COUNTS for each in pair} | {"week"}
    return _SINGULAR.get(name, name if name in units else name.removesuffix("s"))


def _calendar(match: re.Match[str]) -> ExactAnswer:
    part, whole = _singular(match["part"]), _singular(match["whole"])
    value = amount_of(match["number"]) * _CALENDAR[whole] / _CALENDAR[part]
    if value.denominator != 1:
        raise NotForProgram("The result is not a whole number.")
    return ExactAnswer(
        f"{show(amount_of(match['number']))} {match['whole'].casefold()} {'is' if match['number'] in ('a', 'one') else 'are'} {show(value)} {match['part'].casefold()}.",
        show(value),
    )


COUNTS: tuple[Rule, ...] = (
    (pattern(rf"how many (?P<part>[a-z]+) (?:are|is|are there|does|do|has|have|make|make up)?\s*(?:there )?(?:in )?(?P<number>half an?|an?|one|{NUMBER}|)\s?(?P<whole>(?:{_COUNTED})s?|centuries|millennia|year|years)(?: have| has)?"), _plain_count),
    (pattern(r"how many (?P<part>days) (?:are |does |are there |has )?(?:in |there in )?(?P<number>an?|one|) ?(?:year that is not a (?P<whole>leap year)|non-leap year|normal year|regular year|common year)(?: have)?"), lambda _: ExactAnswer("A year that is not a leap year has 365 days.", "365")),
    (pattern(rf"how many (?P<part>{_CALENDAR_NAMES}) (?:are|is|are there|has|have|make|make up)?\s*(?:there )?(?:in )?(?P<number>half an?|an?|one|{NUMBER}) (?P<whole>{_CALENDAR_NAMES})(?: have| has)?"), _calendar),
)  # fmt: skip
