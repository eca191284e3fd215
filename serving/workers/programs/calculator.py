"""Calculator: sums in signs and words, percentages, comparisons, properties of numbers, word problems and
algebra.

Results are exact, except for irrational roots. Their rounded value follows the word "about".
"""

import math
import re
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

from serving.workers.programs.algebra import polynomial_answer
from serving.workers.programs.expressions import (
    NUMBER,
    approximate,
    check_bits,
    compute,
    read_number,
    show,
)
from serving.workers.programs.program import (
    ExactAnswer,
    NotForProgram,
    PlainQuestion,
    ProgramWorker,
    Rule,
    answer_by,
    load,
    pattern,
)
from serving.workers.programs.stories import STORIES

MOST_FACTORED = 10**12
"""Largest number that is factored or tested for primality."""
MOST_COUNTED = 200
"""Maximum number of steps of a sequence of numbers in an answer."""

_N = rf"({NUMBER})"
_WHAT = r"(?:what is |what are |what does |how much is |how much are |calculate |compute |evaluate |work out |solve |add up |find )?(?:the )?(?:value of |result of |answer to )?"
_LIST = rf"{NUMBER}(?:(?:,| and|, and) {NUMBER})+"
_SPLIT = re.compile(r",? and |, |,(?!\d{3}(?!\d))")
_SIZES = {
    "bigger": 1, "larger": 1, "greater": 1, "more": 1, "higher": 1, "smaller": -1, "less": -1, "lower": -1, "fewer": -1,
}  # fmt: skip
_ORDER = {"biggest": 1, "largest": 1, "greatest": 1, "highest": 1, "smallest": -1, "least": -1, "lowest": -1}


def _numbers(text: str) -> list[Fraction]:
    if re.search(r"\d,\d{3}(?!\d)", text) and re.search(r"\d,\d{1,2}(?!\d)", text):
        raise NotForProgram(
            "The commas in these numbers are ambiguous. Separate the numbers with a comma and a space."
        )
    return [read_number(part) for part in _SPLIT.split(text)]


def _equals(expression: str, value: Fraction) -> ExactAnswer:
    sign = "=" if re.search(r"[-+*/×÷^]", expression) and not show(value).startswith("about") else "is"
    return ExactAnswer(f"{expression} {sign} {show(value)}.", show(value))


def _expression(match: re.Match[str]) -> ExactAnswer:
    text = re.sub(r"\s*(?:=\s*\??|equals?|is what|is how much|make|makes|equal to)$", "", match["e"]).strip()
    if parts := re.fullmatch(r"(.+), (?:that is|i\.e\.|meaning),? (.+)", text):
        values = [compute(part)[0] for part in parts.groups()]
        if values[0] != values[1]:
            raise NotForProgram("The two forms of the calculation have different results.")
        text = parts[2]
    if root := re.fullmatch(r"(?:the )?(?:square root of|sqrt)\s*\(?(.+?)\)?|√\s*(.+)", text, re.IGNORECASE):
        return _square_root(root[1] or root[2])
    value, n_operations = compute(text)
    if not n_operations:
        raise NotForProgram("The question contains no calculation.")
    return _equals(text, value)


def _square_root(operand: str) -> ExactAnswer:
    value = compute(operand)[0]
    if value < 0:
        raise NotForProgram("The square root of a negative number is not a real number.")
    with localcontext(prec=60):
        found = Fraction((Decimal(value.numerator) / Decimal(value.denominator)).sqrt())
    tops = math.isqrt(value.numerator), math.isqrt(value.denominator)
    if (tops[0] ** 2, tops[1] ** 2) == (value.numerator, value.denominator):
        exact = Fraction(*tops)
        return ExactAnswer(f"The square root of {show(value)} is {show(exact)}.", show(exact))
    text = approximate(found, 8)
    return ExactAnswer(f"The square root of {show(value)} is about {text}.", text)


def _percent_of(match: re.Match[str]) -> ExactAnswer:
    part, whole = read_number(match[1]), compute(match[2])[0]
    value = check_bits(part * whole / 100)
    return ExactAnswer(f"{show(part)} % of {show(whole)} is {show(value)}.", show(value))


def _what_percent(match: re.Match[str]) -> ExactAnswer:
    part, whole = read_number(match["part"]), read_number(match["whole"])
    if not whole:
        raise NotForProgram("A percentage of zero is undefined.")
    value = part / whole * 100
    return ExactAnswer(f"{show(part)} is {show(value)} % of {show(whole)}.", f"{show(value)} %")


def _percent_change(match: re.Match[str]) -> ExactAnswer:
    base, percent, word = read_number(match["base"]), read_number(match["percent"]), match["how"].casefold()
    is_more = word.startswith(("increase", "raise", "plus", "add"))
    value = base * (100 + percent if is_more else 100 - percent) / 100
    how = "increased" if is_more else "reduced"
    currency = next((sign for sign in "$€£" if sign in match[0]), "")
    result = f"{currency}{show(value)}"
    return ExactAnswer(f"{currency}{show(base)} {how} by {show(percent)} % is {result}.", result)


def _mean(numbers: list[Fraction]) -> Fraction:
    return sum(numbers, Fraction(0)) / len(numbers)


def _total(numbers: list[Fraction]) -> Fraction:
    return sum(numbers, Fraction(0))


def _product_of(numbers: list[Fraction]) -> Fraction:
    result = Fraction(1)
    for number in numbers:
        result = check_bits(result * number)
    return result


def _extreme(numbers: list[Fraction], sign: int) -> Fraction:
    return max(numbers) if sign > 0 else min(numbers)


def _median(numbers: list[Fraction]) -> Fraction:
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _difference(numbers: list[Fraction]) -> Fraction:
    if len(numbers) != 2:
        raise NotForProgram("A difference needs exactly two numbers.")
    return abs(numbers[0] - numbers[1])


_AGGREGATES: dict[str, Callable[[list[Fraction]], Fraction]] = {
    "sum": _total, "total": _total, "product": _product_of, "average": _mean, "mean": _mean, "median": _median,
    "difference": _difference,
}  # fmt: skip


def _aggregate(match: re.Match[str]) -> ExactAnswer:
    numbers, what = _numbers(match["list"]), match["what"].casefold()
    value = _AGGREGATES[what](numbers) if what in _AGGREGATES else _extreme(numbers, _ORDER[what])
    listed = _list_text([show(each) for each in numbers])
    of = "between" if what == "difference" else "of"
    return ExactAnswer(f"The {what} {of} {listed} is {show(value)}.", show(value))


def _list_text(texts: list[str]) -> str:
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else texts[0]


def _add_up(match: re.Match[str]) -> ExactAnswer:
    numbers, word = _numbers(match["list"]), match["verb"].casefold()
    if word.startswith("multiply"):
        value, sign = _product_of(numbers), " × "
    else:
        value, sign = _total(numbers), " + "
    return ExactAnswer(f"{sign.join(show(each) for each in numbers)} = {show(value)}.", show(value))


def _take_from(match: re.Match[str]) -> ExactAnswer:
    value = read_number(match[2]) - read_number(match[1])
    return ExactAnswer(
        f"{show(read_number(match[2]))} − {show(read_number(match[1]))} = {show(value)}.", show(value)
    )


def _divide_by(match: re.Match[str]) -> ExactAnswer:
    if not (divisor := read_number(match[2])):
        raise NotForProgram("Division by zero is undefined.")
    value = read_number(match[1]) / divisor
    return ExactAnswer(f"{show(read_number(match[1]))} ÷ {show(divisor)} = {show(value)}.", show(value))


def _which(match: re.Match[str]) -> ExactAnswer:
    numbers, word = _numbers(re.sub(r",? or ", ", ", match["list"])), match["how"].casefold()
    if len(set(numbers)) != len(numbers):
        raise NotForProgram("Two of the numbers to compare are equal.")
    if word in _SIZES and len(numbers) != 2:
        raise NotForProgram(f'A comparison with "{word}" needs exactly two numbers.')
    wanted = max(numbers) if (_SIZES | _ORDER)[word] > 0 else min(numbers)
    if word in _ORDER:
        return ExactAnswer(f"{show(wanted)} is the {word} number.", show(wanted))
    other = next(each for each in numbers if each != wanted)
    return ExactAnswer(f"{show(wanted)} is {word} than {show(other)}.", show(wanted))


def _is_more(match: re.Match[str]) -> ExactAnswer:
    left, right, word = compute(match[1])[0], compute(match[3])[0], match[2].casefold()
    same = "equal" in word or word == "the same as"
    is_so = left == right if same else (left - right) * (_SIZES[word.removesuffix(" than")]) > 0
    no = "" if is_so else "not "
    return ExactAnswer(
        f"{'Yes' if is_so else 'No'}, {show(left)} is {no}{word} {show(right)}.", "Yes" if is_so else "No"
    )


def _whole(text: str) -> int:
    value = read_number(text)
    if value.denominator != 1 or abs(value) > MOST_FACTORED:
        raise NotForProgram(f"The number must be an integer from -{MOST_FACTORED:,} to {MOST_FACTORED:,}.")
    return value.numerator


def _parity(match: re.Match[str]) -> ExactAnswer:
    kind = "odd" if _whole(match[1]) % 2 else "even"
    words = set(re.findall(r"\b(?:odd|even)\b", match[0].casefold()))
    number = show(read_number(match[1]))
    if len(words) == 2:
        return ExactAnswer(f"{number} is an {kind} number.", kind.capitalize())
    is_so = kind in words
    return ExactAnswer(f"{'Yes' if is_so else 'No'}, {number} is {kind}.", "Yes" if is_so else "No")


def _prime(match: re.Match[str]) -> ExactAnswer:
    factorint: Any = load("sympy").factorint

    number = _whole(match[1])
    factors: dict[int, int] = factorint(number) if number > 1 else {}
    if number > 1 and factors == {number: 1}:
        return ExactAnswer(f"Yes, {number:,} is a prime number.", "Yes")
    why = f": it is {_product(factors)}" if factors else ""
    return ExactAnswer(f"No, {number:,} is not a prime number{why}.", "No")


def _product(factors: dict[int, int]) -> str:
    return " × ".join(f"{prime}^{count}" if count > 1 else f"{prime}" for prime, count in factors.items())


def _prime_factors(match: re.Match[str]) -> ExactAnswer:
    factorint: Any = load("sympy").factorint

    if (number := _whole(match[1])) < 2:
        raise NotForProgram("Numbers below 2 have no prime factors.")
    product = _product(factorint(number))
    return ExactAnswer(f"The prime factors of {number:,}: {number} = {product}.", product)


def _common(match: re.Match[str]) -> ExactAnswer:
    numbers = [_whole(part) for part in _SPLIT.split(match["list"])]
    is_divisor = match["what"].casefold() in (
        "gcd",
        "greatest common divisor",
        "greatest common factor",
        "hcf",
        "gcf",
        "highest common factor",
    )
    if len(numbers) > 10 or min(numbers) < 1:
        raise NotForProgram("This calculation accepts at most ten positive integers.")
    value = math.gcd(*numbers) if is_divisor else math.lcm(*numbers)
    name = "greatest common divisor" if is_divisor else "least common multiple"
    listed = _list_text([f"{each:,}" for each in numbers])
    return ExactAnswer(
        f"The {name} of {listed} is {show(check_bits(Fraction(value)))}.", show(Fraction(value))
    )


def _neighbour(match: re.Match[str]) -> ExactAnswer:
    number, is_after = _whole(match[2]), match[1].casefold() in ("after", "follows")
    value = f"{number + 1:,}" if is_after else f"{number - 1:,}"
    return ExactAnswer(f"{value} comes right {'after' if is_after else 'before'} {number:,}.", value)


def _between(match: re.Match[str]) -> ExactAnswer:
    low, high = _whole(match[1]), _whole(match[2])
    if high - low != 2:
        raise NotForProgram(f"There is not exactly one integer between {low:,} and {high:,}.")
    return ExactAnswer(f"{low + 1:,} comes between {low:,} and {high:,}.", f"{low + 1:,}")


def _count(match: re.Match[str]) -> ExactAnswer:
    first, last = _whole(match["first"] or "1"), _whole(match["last"])
    step = _whole(match["step"] or "1")
    step = step if last >= first else -step
    if not step or abs(last - first) // abs(step) > MOST_COUNTED:
        raise NotForProgram(f"A sequence must have at most {MOST_COUNTED} steps, and its step must not be 0.")
    text = ", ".join(str(each) for each in range(first, last + (1 if step > 0 else -1), step))
    return ExactAnswer(f"{text}.", text)


def _round_answer(match: re.Match[str]) -> ExactAnswer:
    value, to = read_number(match[1]), match[2].casefold()
    places = {
        "whole number": 0,
        "integer": 0,
        "ten": -1,
        "hundred": -2,
        "thousand": -3,
        "tenth": 1,
        "hundredth": 2,
    }
    if "decimal" in to:
        n_places = _whole(to.split()[0])
    else:
        n_places = places[to.removeprefix("the nearest ").removeprefix("nearest ")]
    if not -3 <= n_places <= 12:
        raise NotForProgram("Numbers can be rounded to at most 12 decimal places.")
    scaled = abs(value) * Fraction(10) ** n_places
    whole = math.floor(scaled + Fraction(1, 2)) * (1 if value >= 0 else -1)
    result = show(Fraction(whole) / Fraction(10) ** n_places)
    return ExactAnswer(f"{show(value)} rounded to {to} is {result}.", result)


_POLYGONS = {
    "triangle": 3, "square": 4, "rectangle": 4, "quadrilateral": 4, "rhombus": 4, "trapezoid": 4, "parallelogram": 4,
    "pentagon": 5, "hexagon": 6, "heptagon": 7, "octagon": 8, "nonagon": 9, "decagon": 10, "dodecagon": 12,
}  # fmt: skip
_SOLIDS = {
    ("cube", "faces"): 6, ("cube", "sides"): 6, ("cube", "edges"): 12, ("cube", "corners"): 8, ("cube", "vertices"): 8,
    ("tetrahedron", "faces"): 4, ("octahedron", "faces"): 8, ("dodecahedron", "faces"): 12, ("icosahedron", "faces"): 20,
}  # fmt: skip


def _shape(match: re.Match[str]) -> ExactAnswer:
    shape, what = match["shape"].casefold(), match["what"].casefold()
    is_flat = what in ("sides", "corners", "angles", "vertices", "edges")
    count = _SOLIDS.get((shape, what)) or (_POLYGONS.get(shape) if is_flat else None)
    if count is None:
        raise NotForProgram(f'The program has no data about the {what} of the shape "{shape}".')
    return ExactAnswer(f"{'An' if shape[0] in 'aeio' else 'A'} {shape} has {count} {what}.", str(count))


RULES: tuple[Rule, ...] = (
    (pattern(rf"{_WHAT}{_N}\s*(?:%|per ?cent) of [$€£]?(.+)"), _percent_of),
    (pattern(rf"(?:what )?(?:percent|percentage|%) of (?P<whole>{NUMBER}) is (?P<part>{NUMBER})"), _what_percent),
    (pattern(rf"what is (?P<part>{NUMBER}) as a (?:percent|percentage) of (?P<whole>{NUMBER})"), _what_percent),
    (pattern(rf"(?P<part>{NUMBER}) is what (?:percent|percentage|%) of (?P<whole>{NUMBER})"), _what_percent),
    (pattern(rf"{_WHAT}[$€£]?(?P<base>{NUMBER}) (?P<how>increased|decreased|reduced|raised|minus|plus) (?:by )?(?P<percent>{NUMBER})\s*(?:%|per ?cent)"), _percent_change),
    (pattern(rf"(?P<how>increase|decrease|reduce|raise) [$€£]?(?P<base>{NUMBER}) by (?P<percent>{NUMBER})\s*(?:%|per ?cent)"), _percent_change),
    (pattern(rf"{_WHAT}(?P<percent>{NUMBER})\s*(?:%|per ?cent) (?P<how>off|discount on|off of) [$€£]?(?P<base>{NUMBER})"), _percent_change),
    (pattern(rf"{_WHAT}(?P<what>sum|total|product|average|mean|median|difference|{'|'.join(_ORDER)})(?: number)? (?:of|between)(?: the numbers)?:? (?P<list>{_LIST})"), _aggregate),
    (pattern(rf"(?P<verb>add|add up|sum|sum up|multiply|add together)(?: the numbers)?:? (?P<list>{_LIST})(?: together)?"), _add_up),
    (pattern(rf"(?P<verb>add|multiply) (?P<list>{NUMBER} (?:to|by|and|with) {NUMBER})"), lambda m: _add_up(_join_match(m))),
    (pattern(rf"(?:subtract|take(?: away)?) {_N} (?:away )?from {_N}"), _take_from),
    (pattern(rf"divide {_N} by {_N}"), _divide_by),
    (pattern(rf"(?:which|what)(?: one| number)?(?: of these)? is(?: the)? (?P<how>{'|'.join([*_SIZES, *_ORDER])})(?: number)?[:,]? (?P<list>{NUMBER}(?:(?:, or| or|,| and|, and) {NUMBER})+)"), _which),
    (pattern(rf"which number is (?P<how>{'|'.join([*_SIZES, *_ORDER])})[:,]? (?P<list>{NUMBER}(?:(?:, or| or|,) {NUMBER})+)"), _which),
    (pattern(rf"is (.+?) (equal to|the same as|(?:{'|'.join(_SIZES)}) than) (.+)"), _is_more),
    (pattern(rf"(?:is )?(?:the number )?{_N}(?: is)? (?:an )?(?:even|odd)(?: number)?(?: or (?:an )?(?:even|odd)(?: number)?)?"), _parity),
    (pattern(rf"is (?:the number )?{_N} (?:a )?prime(?: number)?"), _prime),
    (pattern(rf"{_WHAT}prime (?:factors|factori[sz]ation) of {_N}"), _prime_factors),
    (pattern(rf"{_WHAT}(?P<what>gcd|hcf|gcf|lcm|greatest common (?:divisor|factor)|highest common factor|(?:least|lowest) common multiple) of (?P<list>{_LIST})"), _common),
    (pattern(rf"(?:what|which) (?:whole )?number (?:comes |is )?(?:right |just |directly |immediately )?(before|after|follows) {_N}"), _neighbour),
    (pattern(rf"(?:what|which) (?:whole )?number (?:comes|is|lies) between {_N} and {_N}"), _between),
    (pattern(rf"(?:list|write|name|say|give me|print|write down) (?:the )?(?:whole )?numbers (?:from )?(?P<first>{NUMBER}) (?:to|through) (?P<last>{NUMBER})(?P<step>(?!))?"), _count),
    (pattern(rf"count (?:(?:up |down |backwards )?from (?P<first>{NUMBER}) )?(?:up |down |backwards )?to (?P<last>{NUMBER})(?: (?:by|in steps of|in) (?P<step>{NUMBER})s?)?"), _count),
    (pattern(rf"(?:what is |round ){_N}(?: rounded)? (?:to )?((?:the )?nearest (?:whole number|integer|ten|hundred|thousand|tenth|hundredth)|{NUMBER} decimal(?: place)?s?)"), _round_answer),
    (pattern(r"how many (?P<what>sides|corners|angles|vertices|edges|faces) (?:does|do|has|are there in|are in|in)(?: an?| the)? (?P<shape>[a-z]+)(?: have| has)?"), _shape),
    (pattern(r"(?P<what>solve|factor(?:i[sz]e)?|expand|simplify|differentiate|(?:what is |find )?the derivative of|find)(?: the equation| the polynomial)?:? (?P<letter>(?!))?(?P<e>[-+*/^().=0-9a-z ²³−]*?[a-df-hj-z][-+*/^().=0-9a-z ²³−]*?)(?: (?:for|with respect to) [a-z])?"), polynomial_answer),
    (pattern(r"(?P<what>find|solve)(?: for)? (?P<letter>[a-z])(?: in| if| when|:|,)* (?P<e>[-+*/^().=0-9a-z ²³−]+)"), polynomial_answer),
    *STORIES,
    (pattern(rf"{_WHAT}(?P<e>.+)"), _expression),
)  # fmt: skip


def _join_match(match: re.Match[str]) -> re.Match[str]:
    text = re.sub(r" (?:to|by|with) ", " and ", match["list"])
    found = re.fullmatch(rf"(?P<verb>\w+) (?P<list>{_LIST})", f"{match['verb']} {text}", re.IGNORECASE)
    if found is None:
        raise NotForProgram("The program does not understand this calculation.")
    return found


class Calculator(ProgramWorker):
    topic = "arithmetic, percentages, comparisons of numbers and algebra"
    packages = ("sympy",)

    def answer(self, question: PlainQuestion) -> ExactAnswer:
        return answer_by(RULES, question)
