"""Numbers in words, in digits and in Roman numerals, for the calculator."""

import re

from serving.workers.programs.expressions import NUMBER, TENS, UNITS, approximate, compute, read_number, show
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, pattern

_SCALES = ((10**9, "billion"), (10**6, "million"), (10**3, "thousand"), (100, "hundred"))
_ROMAN = (
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"),
    (5, "V"), (4, "IV"), (1, "I"),
)  # fmt: skip
MOST = 10**12 - 1


def in_words(number: int) -> str:
    """Return a whole number from 0 to `MOST` in words."""
    if number < 20:
        return UNITS[number]
    if number < 100:
        ten, rest = divmod(number, 10)
        return TENS[ten - 2] + (f"-{UNITS[rest]}" if rest else "")
    value, name = next(each for each in _SCALES if number >= each[0])
    count, rest = divmod(number, value)
    joint = " and " if rest and rest < 100 else " "
    return f"{in_words(count)} {name}{joint}{in_words(rest)}" if rest else f"{in_words(count)} {name}"


def to_roman(number: int) -> str:
    """Return a whole number from 1 to 3999 as a Roman numeral."""
    text = ""
    for value, letters in _ROMAN:
        count, number = divmod(number, value)
        text += letters * count
    return text


def _whole(text: str, least: int, most: int) -> int:
    value = read_number(text)
    if value.denominator != 1 or not least <= value <= most:
        raise NotForProgram(f"The number must be an integer from {least} to {most:,}.")
    return value.numerator


def _words(match: re.Match[str]) -> ExactAnswer:
    number = _whole(match["n"], 0, MOST)
    text = in_words(number)
    return ExactAnswer(f"{number:,} in words is {text}.", text)


def _digits(match: re.Match[str]) -> ExactAnswer:
    text = str(_whole(match["n"], 0, MOST))
    return ExactAnswer(f"{match['n'][0].upper()}{match['n'][1:]} is {text} in digits.", text)


def _roman(match: re.Match[str]) -> ExactAnswer:
    number = _whole(match["n"], 1, 3999)
    return ExactAnswer(f"{number} is {to_roman(number)} in Roman numerals.", to_roman(number))


def _from_roman(match: re.Match[str]) -> ExactAnswer:
    numeral = match["numeral"].upper()
    values = {letters: value for value, letters in _ROMAN}
    places = [values[letter] for letter in numeral]
    number = sum(-a if a < b else a for a, b in zip(places, [*places[1:], 0], strict=True))
    if not 1 <= number <= 3999 or to_roman(number) != numeral:
        raise NotForProgram(f'"{numeral}" is not a Roman numeral.')
    return ExactAnswer(f"The Roman numeral {numeral} is {number}.", str(number))


def _in_form(match: re.Match[str]) -> ExactAnswer:
    """Answer a fraction or a decimal as a percentage or a decimal."""
    is_percent = match["form"].casefold().startswith("per")
    value = compute(match["fraction"])[0] * (100 if is_percent else 1)
    is_exact = not show(value).startswith("about")
    text = f"{show(value) if is_exact else approximate(value)}{' %' if is_percent else ''}"
    return ExactAnswer(f"{match['fraction']} is {'' if is_exact else 'about '}{text}.", text)


def _in_base(match: re.Match[str]) -> ExactAnswer:
    number, base = _whole(match["n"], 0, MOST), match["base"].casefold()
    text = format(number, {"b": "b", "o": "o", "h": "X"}[base[0]])
    return ExactAnswer(f"{number:,} is {text} in {'hexadecimal' if base == 'hex' else base}.", text)


_N = rf"(?:the )?(?:number |numeral |word )?[\"']?(?P<n>{NUMBER})[\"']?"
_NUMERAL = r"[\"']?(?P<numeral>[ivxlcdm]{1,15})[\"']?"
_ASK = r"(?:what is|how do you (?:write|spell|say)|write|spell|express|convert|how is|what number is|give me|show|write down|say)"
NUMERALS: tuple[Rule, ...] = (
    (pattern(rf"(?:(?:{_ASK}|turn|change) )?(?P<fraction>\d{{1,9}}/\d{{1,9}}|\d{{0,9}}\.\d{{1,9}}) (?:in|into|as|to) (?:an? )?(?P<form>per ?cent|percentage|decimal)(?: number)?"), _in_form),
    (pattern(rf"(?:(?:{_ASK}|turn|change) )?(?:the )?(?:number )?(?P<n>\d{{1,12}}) (?:in|into|as|to) (?:an? )?(?P<base>binary|hexadecimal|hex|octal)(?: number)?"), _in_base),
    (pattern(rf"what is {_NUMERAL} (?:in|as an?) (?:normal |arabic |ordinary )?(?:numbers?|digits)"), _from_roman),
    (pattern(rf"{_ASK} {_N}(?: written| spelled)?(?: out)? (?:in|into|as|to|with) (?:a |an )?(?:words?|letters|english words?)"), _words),
    (pattern(rf"(?:spell(?: out)?|write out) (?:the number )(?P<n>{NUMBER})"), _words),
    (pattern(rf"{_ASK} {_N}(?: written)? (?:in|into|as|to|with|using) (?:a |an )?(?:digits?|numbers?|figures?|numerals?)"), _digits),
    (pattern(rf"{_ASK} {_N}(?: written)? (?:in|into|as|to|using) (?:a |an )?roman (?:numerals?|numbers?|digits?)"), _roman),
    (pattern(rf"(?:what is |give me |write )?(?:the )?roman numerals? (?:for|of) {_N}"), _roman),
    (pattern(rf"(?:what|which) (?:number )?(?:is|does) (?:the )?(?:roman (?:numeral|number) )?{_NUMERAL}(?: in roman numerals?| as a roman numeral| mean in roman numerals?| stand for in roman numerals?| equal in roman numerals?)"), _from_roman),
    (pattern(rf"(?:what|which) (?:number )?(?:is|does) (?:the )?roman (?:numeral|number) {_NUMERAL}(?: mean| stand for| equal| represent| as a number| in numbers)?"), _from_roman),
    (pattern(rf"(?:convert|write|express) (?:the )?roman (?:numeral|number) {_NUMERAL} (?:to|in|into|as) (?:an? )?(?:normal |arabic |ordinary |decimal )?(?:number|numbers|digits|numerals?)"), _from_roman),
)  # fmt: skip
