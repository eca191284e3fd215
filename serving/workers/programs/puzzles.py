"""Questions about numbers for the calculator that are not written as a calculation: missing numbers, remainders, lists of
numbers, fractions and dozens.
"""

import re
from collections.abc import Callable
from fractions import Fraction

from serving.workers.programs.expressions import NUMBER, check_bits, compute, read_number, show
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, pattern

MOST_FACTORED = 10**12
"""Largest number that is factored or tested for primality."""
MOST_COUNTED = 200
"""Maximum number of steps of a sequence of numbers in an answer."""
WHAT = r"(?:what is |what are |what does |how much is |how much are |calculate |compute |evaluate |work out |solve |add up |find )?(?:the )?(?:value of |result of |answer to )?"
LIST = rf"{NUMBER}(?:(?:,| and|, and) {NUMBER})+"
_OP = r"plus|minus|times|multiplied by|divided by|added to|[-+*/x×÷]"
_MAKES = r"(?:makes?|is equal to|equals?|is|gives?|=)"
_FRACTION = (
    rf"(?:an? |one |two |three )?(?:half|third|quarter|fourth|fifth|sixth|eighth|tenth)s?|\d+/\d+|{NUMBER}"
)
SPLIT = re.compile(r",? and |, |,(?!\d{3}(?!\d))")
SIZES = {
    "bigger": 1, "larger": 1, "greater": 1, "more": 1, "higher": 1, "smaller": -1, "less": -1, "lower": -1, "fewer": -1,
}  # fmt: skip
ORDER = {"biggest": 1, "largest": 1, "greatest": 1, "highest": 1, "smallest": -1, "least": -1, "lowest": -1}


def numbers_of(text: str) -> list[Fraction]:
    """Return the numbers of a list that is separated by commas or `and`.

    Raises:
        NotForProgram: the list has commas that can be read in two ways.
    """
    if re.search(r"\d,\d{3}(?!\d)", text) and re.search(r"\d,\d{1,2}(?!\d)", text):
        raise NotForProgram(
            "The commas in these numbers are ambiguous. Separate the numbers with a comma and a space."
        )
    return [read_number(part) for part in SPLIT.split(text)]


def whole_number(text: str) -> int:
    """Return the whole number in `text`.

    Raises:
        NotForProgram: the text is not a whole number, or it is too large.
    """
    value = read_number(text)
    if value.denominator != 1 or abs(value) > MOST_FACTORED:
        raise NotForProgram(f"The number must be an integer from -{MOST_FACTORED:,} to {MOST_FACTORED:,}.")
    return value.numerator


_OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: check_bits(a * b), "/": lambda a, b: a / b,
}  # fmt: skip
_SIGN_OF = {
    "plus": "+",
    "minus": "-",
    "times": "*",
    "multiplied by": "*",
    "divided by": "/",
    "x": "*",
    "×": "*",
    "÷": "/",
    "added to": "+",
}


def _solve_unknown(match: re.Match[str]) -> ExactAnswer:
    """Find the missing operand of a sum: the first one if the group `b` is known, else the second one."""
    groups = match.groupdict()
    op = match["op"] or "+"
    sign = _SIGN_OF.get(op.casefold(), op)
    result, is_first = read_number(match["result"]), groups.get("b") is not None
    operand = read_number(groups.get("b") or groups["a"])
    if (sign in "*/" and not operand) or (sign == "/" and not is_first and not result):
        raise NotForProgram("Division by zero is undefined.")
    if is_first:
        value = _OPERATIONS[{"+": "-", "-": "+", "*": "/", "/": "*"}[sign]](result, operand)
    else:
        value = {"+": result - operand, "-": operand - result}.get(sign, Fraction(0))
        value = result / operand if sign == "*" else operand / result if sign == "/" else value
    first, second = (show(value), show(operand)) if is_first else (show(operand), show(value))
    return ExactAnswer(f"The number is {show(value)}: {first} {sign} {second} = {show(result)}.", show(value))


def _more_or_less(match: re.Match[str]) -> ExactAnswer:
    amount, base = read_number(match["a"]), read_number(match["b"])
    is_more = match["how"].casefold() in ("more", "greater", "bigger", "larger", "higher")
    value = base + amount if is_more else base - amount
    return ExactAnswer(f"{show(amount)} {match['how']} than {show(base)} is {show(value)}.", show(value))


def _how_often(match: re.Match[str]) -> ExactAnswer:
    names = {
        "tens": 10,
        "hundreds": 100,
        "thousands": 1000,
        "millions": 10**6,
        "twos": 2,
        "fives": 5,
        "dozens": 12,
        "halves": Fraction(1, 2),
        "quarters": Fraction(1, 4),
    }
    part = names.get(match["part"].casefold()) or read_number(re.sub(r"'?s$", "", match["part"]))
    if not part or (value := read_number(match["whole"]) / part).denominator != 1:
        raise NotForProgram("The division has a remainder.")
    return ExactAnswer(
        f"{show(read_number(match['whole']))} ÷ {show(Fraction(part))} = {show(value)}.", show(value)
    )


def _remainder(match: re.Match[str]) -> ExactAnswer:
    dividend, divisor = whole_number(match["a"]), whole_number(match["b"])
    if not divisor:
        raise NotForProgram("Division by zero is undefined.")
    value = str(dividend % divisor)
    return ExactAnswer(f"The remainder of {dividend:,} ÷ {divisor:,} is {value}.", value)


def _divisible(match: re.Match[str]) -> ExactAnswer:
    number, divisor = whole_number(match["a"]), whole_number(match["b"])
    if not divisor:
        raise NotForProgram("Division by zero is undefined.")
    text = "No" if number % divisor else "Yes"
    return ExactAnswer(
        f"{text}, {number:,} is {'not ' if text == 'No' else ''}divisible by {divisor:,}.", text
    )


def _extreme_digits(match: re.Match[str]) -> ExactAnswer:
    count = whole_number(match["n"])
    if not 1 <= count <= 12:
        raise NotForProgram("The number of digits must be from 1 to 12.")
    value = (
        10**count - 1
        if match["how"].casefold() in ("largest", "biggest", "highest", "greatest")
        else 10 ** (count - 1)
        if count > 1
        else 0
    )
    return ExactAnswer(f"The {match['how']} {match['n']}-digit number is {value:,}.", f"{value:,}")


def _halfway(match: re.Match[str]) -> ExactAnswer:
    value = (read_number(match["a"]) + read_number(match["b"])) / 2
    return ExactAnswer(f"{show(value)} is halfway between {match['a']} and {match['b']}.", show(value))


def _some_numbers(match: re.Match[str]) -> ExactAnswer:
    """List the even or odd numbers of a range, or name one of its numbers."""
    groups = match.groupdict()
    low, high = whole_number(groups.get("low") or "1"), whole_number(groups.get("high") or "1000000")
    if groups.get("inside"):
        low, high = low + 1, high - 1
    if groups.get("than"):
        limit, is_more = (
            whole_number(match["limit"]),
            match["than"].casefold() in ("bigger", "larger", "greater", "more", "higher", "above"),
        )
        low, high = (limit + 1, limit + 10) if is_more else (limit - 10, limit - 1)
    parity = {"even": 0, "odd": 1}.get((groups.get("parity") or "").casefold())
    if not 0 <= high - low <= MOST_COUNTED and not groups.get("one"):
        raise NotForProgram(f"A list must have at most {MOST_COUNTED} numbers.")
    numbers = [
        each for each in range(low, min(high, low + MOST_COUNTED) + 1) if parity is None or each % 2 == parity
    ]
    if not numbers:
        raise NotForProgram("There is no such number.")
    text = f"{numbers[0]:,}" if groups.get("one") else ", ".join(map(str, numbers))
    return ExactAnswer(f"{text}.", text)


def _sort_numbers(match: re.Match[str]) -> ExactAnswer:
    numbers, how = numbers_of(match["list"]), (match["how"] or "").casefold()
    if "reverse" in how and "order" in how and not re.match(r"sort|order|arrange", match[0], re.IGNORECASE):
        ordered = numbers[::-1]
    else:
        ordered = sorted(
            numbers,
            reverse=bool(re.search(r"desc|decreas|reverse|(?:largest|biggest|highest|greatest) to", how)),
        )
    text = ", ".join(show(each) for each in ordered)
    return ExactAnswer(f"{text}.", text)


def _equality(match: re.Match[str]) -> ExactAnswer:
    first, second = compute(match["left"])[0], compute(match["right"])[0]
    text = "Yes" if first == second else "No"
    return ExactAnswer(f"{text}, {match['left']} {'=' if first == second else 'is'} {show(first)}.", text)


def _which_fraction(match: re.Match[str]) -> ExactAnswer:
    values = {text: _fraction(text) for text in (match["a"], match["b"])}
    if len(set(values.values())) != 2 or all(value.denominator == 1 for value in values.values()):
        raise NotForProgram("The two numbers are equal, or are not fractions.")
    sign = (SIZES | ORDER)[match["how"].casefold()]
    best = max(values, key=lambda text: values[text] * sign)
    return ExactAnswer(f"{best[0].upper()}{best[1:]} is {match['how']}.", best)


def _fraction(text: str) -> Fraction:
    if fraction := re.fullmatch(
        r"(?:an? |one )?(half|third|quarter|fourth|fifth|sixth|eighth|tenth)", text.casefold()
    ):
        return read_number(fraction[1])
    return compute(text)[0]


def _dozen(match: re.Match[str]) -> ExactAnswer:
    text = re.sub(r"^half an? dozen", "6", match["e"], flags=re.IGNORECASE)
    text = re.sub(
        rf"^({NUMBER}|an?) dozen",
        lambda m: show(12 * read_number(re.sub(r"^an?$", "1", m[1]))),
        text,
        flags=re.IGNORECASE,
    )
    value = compute(re.sub(r" and ", " plus ", text))[0]
    return ExactAnswer(f"{match['e'][0].upper()}{match['e'][1:]} is {show(value)}.", show(value))


def _count(match: re.Match[str]) -> ExactAnswer:
    start = match.groupdict().get("by") or "1"
    first, last = whole_number(match["first"] or start), whole_number(match["last"])
    by = {"twos": "2", "threes": "3", "fours": "4", "fives": "5", "tens": "10"}
    named = match.groupdict().get("step") or start
    step = whole_number(by.get(named, named))
    step = step if last >= first else -step
    if not step or abs(last - first) // abs(step) > MOST_COUNTED:
        raise NotForProgram(f"A sequence must have at most {MOST_COUNTED} steps, and its step must not be 0.")
    text = ", ".join(str(each) for each in range(first, last + (1 if step > 0 else -1), step))
    return ExactAnswer(f"{text}.", text)


_HOW_WRITTEN = r"(?:,? (?:separated by|with) (?:commas|spaces)(?: between them)?|,? in order)?"
PUZZLES: tuple[Rule, ...] = (
    (pattern(rf"{WHAT}(?:number )?(?P<a>{NUMBER}) (?P<how>more|greater|bigger|larger|higher|less|fewer|smaller|lower) than (?P<b>{NUMBER})"), _more_or_less),
    (pattern(rf"(?:what|which) number is (?P<a>{NUMBER}) (?P<how>more|greater|bigger|larger|higher|less|fewer|smaller|lower) than (?P<b>{NUMBER})"), _more_or_less),
    (pattern(rf"(?:what|which)(?: number)?,? (?:do you |must you |when )?(?P<op>{_OP}) (?P<b>{NUMBER}) {_MAKES} (?P<result>{NUMBER})"), _solve_unknown),
    (pattern(rf"(?P<a>{NUMBER}) (?P<op>{_OP}) (?:what|which number|what number|_+|\?|x) {_MAKES} (?P<result>{NUMBER})"), _solve_unknown),
    (pattern(rf"(?:_+|\?) (?P<op>{_OP}) (?P<b>{NUMBER}) {_MAKES} (?P<result>{NUMBER})"), _solve_unknown),
    (pattern(rf"(?:what|which number|how much) (?:do|must|should|can) (?:you|we|i) (?:have to |need to )?add to (?P<a>{NUMBER}) to (?:get|make|reach) (?P<result>{NUMBER})(?P<op>(?!))?"), _solve_unknown),
    (pattern(rf"(?:how many (?P<part>tens|hundreds|thousands|millions|twos|fives|dozens|halves|quarters|{NUMBER}'?s)) (?:are (?:there )?in|make|make up|are|go into|is) (?P<whole>(?:an? |one )?{NUMBER})"), _how_often),
    (pattern(rf"how many times does (?P<part>{NUMBER}) (?:go|fit|divide) into (?P<whole>{NUMBER})"), _how_often),
    (pattern(rf"{WHAT}remainder (?:when|if|of|after)(?: dividing)?(?: you divide)? (?P<a>{NUMBER}) (?:is divided by|divided by|by|÷|/) (?P<b>{NUMBER})"), _remainder),
    (pattern(rf"(?:is|can) (?P<a>{NUMBER}) (?:divisible by|a multiple of|be divided by|evenly divisible by) (?P<b>{NUMBER})(?: evenly| without (?:a )?remainder)?"), _divisible),
    (pattern(rf"{WHAT}(?P<how>largest|biggest|highest|greatest|smallest|lowest) (?P<n>{NUMBER})[- ]digit (?:whole )?number"), _extreme_digits),
    (pattern(rf"(?:what|which) number is (?:halfway|exactly in the middle|in the middle|midway) (?:between|of) (?P<a>{NUMBER}) and (?P<b>{NUMBER})"), _halfway),
    (pattern(rf"(?:list|write|name|say|give me|what are|write down|count) (?:all )?(?:the )?(?P<parity>even|odd) numbers (?:from|between) (?P<low>{NUMBER}) (?:to|and|through) (?P<high>{NUMBER})"), _some_numbers),
    (pattern(rf"(?:name|give me|say|write|tell me|choose|pick|think of) (?P<one>an?|one|any) (?:(?P<parity>even|odd) )?(?:whole )?number (?:(?:that is )?(?P<than>bigger|larger|greater|more|higher|smaller|less|lower) than (?P<limit>{NUMBER})|(?:that is )?(?P<inside>between) (?P<low>{NUMBER}) and (?P<high>{NUMBER}))"), _some_numbers),
    (pattern(rf"(?:name|give me|say|write|tell me|choose|pick|think of) (?P<one>an?|one|any) (?:(?P<parity>even|odd) )?(?:whole )?number from (?P<low>{NUMBER}) to (?P<high>{NUMBER})"), _some_numbers),
    (pattern(rf"(?:sort|order|arrange|put|write|list)(?: the numbers?| these numbers?)?:? (?P<list>{LIST}) (?P<how>(?:in(?:to)? |by |from )(?:(?:ascending|descending|increasing|decreasing|numerical|reverse|the right|the correct) ?)?(?:order|size)|from (?:smallest|lowest|least) to (?:largest|biggest|highest|greatest)|from (?:largest|biggest|highest|greatest) to (?:smallest|lowest|least))"), _sort_numbers),
    (pattern(r"(?:is it true that|(?:is|does|do)(?! it true)) (?P<left>[^=]*\d[^=]*?) (?:=|equals?|make|makes) (?P<right>[^=]*\d[^=]*)"), _equality),
    (pattern(r"is it true that (?P<left>.+?) is (?P<right>[^a-z]*\d[^a-z]*)"), _equality),
    (pattern(rf"(?:which|what) is (?P<how>{'|'.join([*SIZES, *ORDER])})(?: number)?[:,]? (?P<a>{_FRACTION}),? or (?P<b>{_FRACTION})"), _which_fraction),
    (pattern(rf"(?:what is |how many is |how many are |how much is )(?P<e>(?:half an?|an?|one|{NUMBER}) dozen(?: (?:plus|minus|and) {NUMBER})?)"), _dozen),
    (pattern(rf"count (?:by|in) (?P<by>{NUMBER})s? (?:up )?(?:from (?P<first>{NUMBER}) )?(?:up )?to (?P<last>{NUMBER})"), _count),
    (pattern(rf"count (?:from (?P<first>{NUMBER}) )?to (?P<last>{NUMBER}) (?:by|in) (?P<step>twos|threes|fours|fives|tens)"), _count),
    (pattern(rf"(?:list|write|name|say|give me|print|write down) (?:the )?(?:whole )?numbers (?:from )?(?P<first>{NUMBER}) (?:to|through) (?P<last>{NUMBER})(?P<step>(?!))?{_HOW_WRITTEN}"), _count),
    (pattern(rf"count (?:(?:up |down |backwards )?from (?P<first>{NUMBER}) )?(?:up |down |backwards )?to (?P<last>{NUMBER})(?: (?:by|in steps of|in) (?P<step>{NUMBER})s?)?{_HOW_WRITTEN}"), _count),
)  # fmt: skip
