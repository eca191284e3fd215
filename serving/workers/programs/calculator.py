"""Calculator: sums in signs and words, percentages, comparisons, properties of numbers, word problems and
algebra.

Results are exact, except for irrational roots. Their rounded value follows the word "about".
"""

import math
import re
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

from serving.workers.programs.algebra import check_solution, polynomial_answer
from serving.workers.programs.expressions import (
    NUMBER,
    approximate,
    check_bits,
    compute,
    read_number,
    show,
)
from serving.workers.programs.numerals import NUMERALS
from serving.workers.programs.prices import PRICES
from serving.workers.programs.primes import PRIMES
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.program import ProgramWorker
from serving.workers.programs.puzzles import (
    LIST,
    ORDER,
    PUZZLES,
    SIZES,
    SPLIT,
    WHAT,
    numbers_of,
    whole_number,
)
from serving.workers.programs.question import PlainQuestion, read_question
from serving.workers.programs.rates import RATES
from serving.workers.programs.rules import ExactAnswer, Rule, answer_by, pattern
from serving.workers.programs.selection import and_list
from serving.workers.programs.sequences import SERIES
from serving.workers.programs.shapes import SHAPES
from serving.workers.programs.stories import STORIES

_N = rf"({NUMBER})"


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
        root = Fraction((Decimal(value.numerator) / Decimal(value.denominator)).sqrt())
    tops = math.isqrt(value.numerator), math.isqrt(value.denominator)
    if (tops[0] ** 2, tops[1] ** 2) == (value.numerator, value.denominator):
        exact = Fraction(*tops)
        return ExactAnswer(f"The square root of {show(value)} is {show(exact)}.", show(exact))
    text = approximate(root, 8)
    return ExactAnswer(f"The square root of {show(value)} is about {text}.", text)


def _percent_of(match: re.Match[str]) -> ExactAnswer:
    unit = re.search(r" (?:dollars?|euros?|pounds?|cents?|kg|km|people|students|grams?)$", match[2])
    part, whole = read_number(match[1]), compute(match[2].removesuffix(unit[0] if unit else ""))[0]
    value = check_bits(part * whole / 100)
    name = unit[0] if unit else ""
    return ExactAnswer(
        f"{show(part)} % of {show(whole)}{name} is {show(value)}{name}.", f"{show(value)}{name}"
    )


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
    numbers, what = numbers_of(match["list"]), match["what"].casefold()
    value = _AGGREGATES[what](numbers) if what in _AGGREGATES else _extreme(numbers, ORDER[what])
    listed = and_list([show(each) for each in numbers])
    of = "between" if what == "difference" else "of"
    return ExactAnswer(f"The {what} {of} {listed} is {show(value)}.", show(value))


def _add_up(match: re.Match[str]) -> ExactAnswer:
    numbers, word = numbers_of(match["list"]), match["verb"].casefold()
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
    numbers, word = numbers_of(re.sub(r",? or ", ", ", match["list"])), match["how"].casefold()
    if len(set(numbers)) != len(numbers):
        raise NotForProgram("Two of the numbers to compare are equal.")
    if word in SIZES and len(numbers) != 2:
        raise NotForProgram(f'A comparison with "{word}" needs exactly two numbers.')
    extreme = max(numbers) if (SIZES | ORDER)[word] > 0 else min(numbers)
    if word in ORDER:
        return ExactAnswer(f"{show(extreme)} is the {word} number.", show(extreme))
    other = next(each for each in numbers if each != extreme)
    return ExactAnswer(f"{show(extreme)} is {word} than {show(other)}.", show(extreme))


def _is_more(match: re.Match[str]) -> ExactAnswer:
    first, second, word = compute(match[1])[0], compute(match[3])[0], match[2].casefold()
    same = "equal" in word or word == "the same as"
    is_so = first == second if same else (first - second) * (SIZES[word.removesuffix(" than")]) > 0
    no = "" if is_so else "not "
    return ExactAnswer(
        f"{'Yes' if is_so else 'No'}, {show(first)} is {no}{word} {show(second)}.", "Yes" if is_so else "No"
    )


def _parity(match: re.Match[str]) -> ExactAnswer:
    kind = "odd" if whole_number(match[1]) % 2 else "even"
    words = set(re.findall(r"\b(?:odd|even)\b", match[0].casefold()))
    number = show(read_number(match[1]))
    if len(words) == 2:
        return ExactAnswer(f"{number} is an {kind} number.", kind.capitalize())
    is_so = kind in words
    return ExactAnswer(f"{'Yes' if is_so else 'No'}, {number} is {kind}.", "Yes" if is_so else "No")


def _common(match: re.Match[str]) -> ExactAnswer:
    numbers = [whole_number(part) for part in SPLIT.split(match["list"])]
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
    listed = and_list([f"{each:,}" for each in numbers])
    return ExactAnswer(
        f"The {name} of {listed} is {show(check_bits(Fraction(value)))}.", show(Fraction(value))
    )


def _neighbour(match: re.Match[str]) -> ExactAnswer:
    number, is_after = whole_number(match[2]), match[1].casefold() in ("after", "follows")
    value = f"{number + 1:,}" if is_after else f"{number - 1:,}"
    return ExactAnswer(f"{value} comes right {'after' if is_after else 'before'} {number:,}.", value)


def _between(match: re.Match[str]) -> ExactAnswer:
    low, high = whole_number(match[1]), whole_number(match[2])
    if high - low != 2:
        raise NotForProgram(f"There is not exactly one integer between {low:,} and {high:,}.")
    return ExactAnswer(f"{low + 1:,} comes between {low:,} and {high:,}.", f"{low + 1:,}")


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
        n_places = whole_number(to.split()[0])
    else:
        n_places = places[to.removeprefix("the nearest ").removeprefix("nearest ")]
    if not -3 <= n_places <= 12:
        raise NotForProgram("Numbers can be rounded to at most 12 decimal places.")
    scaled = abs(value) * Fraction(10) ** n_places
    whole = math.floor(scaled + Fraction(1, 2)) * (1 if value >= 0 else -1)
    result = show(Fraction(whole) / Fraction(10) ** n_places)
    return ExactAnswer(f"{show(value)} rounded to {to} is {result}.", result)


def _again(match: re.Match[str]) -> ExactAnswer:
    """Answer a calculation that stands in a longer question."""
    question = re.sub(r"^(add|multiply|subtract|divide|take)\b", lambda verb: verb[0].lower(), match["e"])
    return answer_by(RULES, PlainQuestion(question, question))


def _less_than(match: re.Match[str]) -> ExactAnswer:
    sign = 1 if match["how"].casefold() == "more" else -1
    value = read_number(match["base"]) * (12 if match["dozen"] else 1) + sign * read_number(match["n"])
    return ExactAnswer(f"The number is {show(value)}.", show(value))


def _chain(match: re.Match[str]) -> ExactAnswer:
    """Answer a calculation that continues with the result of another one."""
    value = answer_by(RULES, read_question(match["first"])).value
    if not re.fullmatch(r"-?[\d,]+(?:\.\d+)?", value):
        raise NotForProgram("The first calculation has no number as its result.")
    value, groups = value.replace(",", ""), match.groupdict()
    signs = {
        "add": "+",
        "plus": "+",
        "subtract": "-",
        "minus": "-",
        "multiply": "*",
        "times": "*",
        "divide": "/",
    }
    verb = (groups["verb"] or "").casefold()
    sign = signs.get(verb, "-" if verb.startswith("take") else "")
    text = f"{value} {sign} {groups['n']}" if sign else f"is {value} odd or even"
    return answer_by(RULES, PlainQuestion(text, text))


def _solve_for(match: re.Match[str]) -> ExactAnswer:
    question = f"find {match['letter']} in {match['e']}"
    return answer_by(RULES, PlainQuestion(question, question))


_THAT = r"(?:that|it|this|the (?:answer|result|total|sum|product))"
RULES: tuple[Rule, ...] = (
    (pattern(rf"(?P<first>.{{3,80}}?)(?:[.;?]|,? (?:and )?then|,? and(?= what| is))(?: then)? (?:what (?:do|would) (?:you|i|we) get (?:if|when) (?:you|i|we) )?(?:(?P<verb>add|plus|subtract|minus|take away|take|multiply|times|divide)(?: {_THAT})?(?: by)? (?P<n>{NUMBER})(?: (?:to|from|away from) {_THAT}| away)?|is {_THAT} (?:an )?(?:odd|even) or (?:odd|even)(?: number)?)"), _chain),
    *PUZZLES,
    *SHAPES,
    (pattern(r"(?:what (?:do|would|will) (?:you|we|i) (?:get|have)|what is the (?:result|answer)|how (?:much|many) (?:do|would|will) (?:you|we|i) (?:get|have)) (?:when|if) (?:you |we |i )?(?P<e>(?:add|multiply|subtract|divide|take) .+)"), _again),
    (pattern(rf"(?:if|when) (?:you |we |i )?(?P<e>(?:add|multiply|subtract|divide|take) [^,]+(?:, {NUMBER})*),? (?:what|how (?:much|many)|which number) (?:do (?:you|we|i) (?:get|have)|is (?:the (?:result|answer)|left|it)|are left|would (?:you|we|i) (?:get|have)|will (?:you|we|i) (?:get|have))(?: left)?"), _again),
    (pattern(r"(?:if )?(?P<e>[-+*/^().=0-9a-z ²³−]*[a-z][-+*/^().=0-9 ²³−]*=[-+*/^().=0-9a-z ²³−]*?)[.,]? (?:then )?what is (?P<letter>[a-z])"), _solve_for),
    (pattern(rf"is it true that (.+?) is (equal to|the same as|(?:{'|'.join(SIZES)}) than) (.+)"), _is_more),
    (pattern(rf"{WHAT}{_N}\s*(?:%|per ?cent) of [$€£]?(.+)"), _percent_of),
    (pattern(rf"(?:what )?(?:percent|percentage|%) of (?P<whole>{NUMBER}) is (?P<part>{NUMBER})"), _what_percent),
    (pattern(rf"what is (?P<part>{NUMBER}) as a (?:percent|percentage) of (?P<whole>{NUMBER})"), _what_percent),
    (pattern(rf"(?:what is |what )?(?:percent(?:age)?|%) is (?P<part>{NUMBER}) (?:out )?of (?P<whole>{NUMBER})"), _what_percent),
    (pattern(rf"(?P<part>{NUMBER}) is what (?:percent|percentage|%) of (?P<whole>{NUMBER})"), _what_percent),
    (pattern(rf"{WHAT}[$€£]?(?P<base>{NUMBER}) (?P<how>increased|decreased|reduced|raised|minus|plus) (?:by )?(?P<percent>{NUMBER})\s*(?:%|per ?cent)"), _percent_change),
    (pattern(rf"(?P<how>increase|decrease|reduce|raise) [$€£]?(?P<base>{NUMBER}) by (?P<percent>{NUMBER})\s*(?:%|per ?cent)"), _percent_change),
    (pattern(rf"{WHAT}(?P<percent>{NUMBER})\s*(?:%|per ?cent) (?P<how>off|discount on|off of) [$€£]?(?P<base>{NUMBER})"), _percent_change),
    (pattern(rf"{WHAT}(?:give me the )?(?P<what>sum|total|product|average|mean|median|difference|{'|'.join(ORDER)})(?: number| value)?(?: \((?:mean|average)\))? (?:of|between)(?: the numbers)?:? (?P<list>{LIST})"), _aggregate),
    (pattern(rf"(?P<verb>add|add up|sum|sum up|multiply|add together)(?: the numbers)?:? (?P<list>{LIST})(?: together)?"), _add_up),
    (pattern(rf"(?P<verb>add|multiply) (?P<list>{NUMBER} (?:to|by|and|with) {NUMBER})"), lambda m: _add_up(_join_match(m))),
    (pattern(rf"(?:subtract|take(?: away)?) {_N} (?:away )?from {_N}"), _take_from),
    (pattern(rf"divide {_N} by {_N}"), _divide_by),
    (pattern(rf"(?:which|what)(?: one| number)?(?: of these)? is(?: the)? (?P<how>{'|'.join([*SIZES, *ORDER])})(?: number)?[:,]? (?P<list>{NUMBER}(?:(?:, or| or|,| and|, and) {NUMBER})+)"), _which),
    (pattern(rf"which number is (?P<how>{'|'.join([*SIZES, *ORDER])})[:,]? (?P<list>{NUMBER}(?:(?:, or| or|,) {NUMBER})+)"), _which),
    (pattern(rf"is (.+?) (equal to|the same as|(?:{'|'.join(SIZES)}) than) (.+)"), _is_more),
    (pattern(rf"(?:is )?(?:the number )?{_N}(?: is)? (?:an )?(?:even|odd)(?: number)?(?: or (?:an )?(?:even|odd)(?: number)?)?"), _parity),
    *PRIMES,
    (pattern(rf"{WHAT}(?P<what>gcd|hcf|gcf|lcm|greatest common (?:divisor|factor)|highest common factor|(?:least|lowest) common multiple) of (?P<list>{LIST})"), _common),
    (pattern(rf"(?:what|which) (?:whole )?number (?:comes |is )?(?:right |just |directly |immediately )?(before|after|follows) {_N}"), _neighbour),
    (pattern(rf"(?:what|which) (?:whole )?number (?:comes|is|lies) between {_N} and {_N}"), _between),
    (pattern(rf"(?:what is |round ){_N}(?: rounded)? (?:to )?((?:the )?nearest (?:whole number|integer|ten|hundred|thousand|tenth|hundredth)|{NUMBER} decimal(?: place)?s?)"), _round_answer),
    (pattern(r"(?P<what>solve|factor(?:i[sz]e)?|expand|simplify|differentiate|(?:what is |find )?the derivative of|find)(?: the equation| the polynomial)?:? (?P<letter>(?!))?(?P<e>[-+*/^().=0-9a-z ²³−]*?[a-df-hj-z][-+*/^().=0-9a-z ²³−]*?)(?: (?:for|with respect to) [a-z])?"), polynomial_answer),
    (pattern(r"check (?:solve|find)(?: the equation)?:? (?P<letter>(?!))?(?P<e>[-+*/^().=0-9a-z ²³−]+)"), check_solution),
    (pattern(r"check (?:solve|find)(?: for)? (?P<letter>[a-z])(?: in| if| when|:|,)* (?P<e>[-+*/^().=0-9a-z ²³−]+)"), check_solution),
    (pattern(r"(?P<what>find|solve)(?: for)? (?P<letter>[a-z])(?: in| if| when|:|,)* (?P<e>[-+*/^().=0-9a-z ²³−]+)"), polynomial_answer),
    *NUMERALS,
    *SERIES,
    *RATES,
    *STORIES,
    *PRICES,
    (pattern(rf"(?:what|which)(?: number)? is (?P<n>{NUMBER}) (?P<how>less|more|fewer) than (?P<base>{NUMBER})(?P<dozen> dozen)?"), _less_than),
    (pattern(rf"{WHAT}(?P<e>.+)"), _expression),
)  # fmt: skip


def _join_match(match: re.Match[str]) -> re.Match[str]:
    text = re.sub(r" (?:to|by|with) ", " and ", match["list"])
    joined_match = re.fullmatch(rf"(?P<verb>\w+) (?P<list>{LIST})", f"{match['verb']} {text}", re.IGNORECASE)
    if joined_match is None:
        raise NotForProgram("The program does not understand this calculation.")
    return joined_match


class Calculator(ProgramWorker):
    topic = "arithmetic, percentages, comparisons of numbers and algebra"
    packages = ("sympy",)

    def answer(self, question: PlainQuestion) -> ExactAnswer:
        return answer_by(RULES, question)
