"""Parser of numbers in words and digits and of expressions, which are computed exactly.

No text is evaluated as Python. The time is bounded by limits for the number of tokens (`MOST_TOKENS`), nested
parentheses (`MOST_DEPTH`), digits of a number (`MOST_DIGITS`) and bits of a result (`MOST_BITS`).
"""

import math
import re
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

from serving.workers.programs.process import NotForProgram

MOST_TOKENS, MOST_DEPTH, MOST_DIGITS, MOST_BITS, MOST_FACTORIAL = 120, 20, 40, 3000, 200
SHOWN_DIGITS = 12
"""Maximum decimals of an exact number. Others are shown as a fraction and an approximation."""

UNITS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SMALL = {word: number for number, word in enumerate(UNITS)} | {
    word: 10 * (number + 2) for number, word in enumerate(TENS)
}
_PARTS = {
    "half": 2,
    "halves": 2,
    "third": 3,
    "quarter": 4,
    "fourth": 4,
    "fifth": 5,
    "sixth": 6,
    "eighth": 8,
    "tenth": 10,
}
_WORD = "|".join([*_SMALL, *_SCALES, "hundred", "dozen"])
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
NUMBER = rf"(?:-?(?:{_DIGITS})|(?:an? )?(?:{_WORD})(?:(?:[ -]| and )(?:{_WORD}))*(?![\w]))"
"""Regular expression for a number in digits or words. It has no groups."""

_TOKEN = re.compile(
    rf"\s*(?:(?P<number>{_DIGITS})(?![\d.,]*\d)(?P<scale>\s*(?:{'|'.join(_SCALES)})\b)?"
    rf"|(?P<part>(?:an? |one |two |three |four )?(?:{'|'.join(_PARTS)})s?(?!\w)(?: of)?)"
    rf"|(?P<words>(?:an? (?=hundred|thousand|million|billion|dozen))?(?:{_WORD})(?:(?:[ -]| and (?=[a-z]))(?:{_WORD}))*(?!\w))"
    r"|(?P<word>to the power of|raised to(?: the power of)?|multiplied by|divided by|squared|cubed|plus|added to|and"
    r"|minus|times|less|over|mod(?:ulo)?|the square root of|square root of|the cube root of|cube root of|sqrt"
    r"|the factorial of|factorial of|factorial|the square of|the cube of|twice|double|triple)(?!\w)"
    r"|(?P<sign>\*\*|[-+*/×÷·−^()!√x²³=]))",
    re.IGNORECASE,
)
_BINARY = {
    "+": "+", "plus": "+", "added to": "+", "-": "-", "−": "-", "minus": "-", "less": "-", "*": "*", "×": "*", "·": "*",
    "x": "*", "times": "*", "multiplied by": "*", "/": "/", "÷": "/", "divided by": "/", "over": "/", "mod": "mod",
    "modulo": "mod", "^": "^", "**": "^", "to the power of": "^", "raised to": "^", "raised to the power of": "^",
}  # fmt: skip
_POSTFIX = {"squared": 2, "cubed": 3, "²": 2, "³": 3, "!": 0, "factorial": 0}
_PREFIX = {
    "sqrt": 2, "√": 2, "square root of": 2, "the square root of": 2, "cube root of": 3, "the cube root of": 3,
}  # fmt: skip
_FACTORS = {"twice": 2, "double": 2, "triple": 3}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "mod": 2, "^": 4}


def read_number(text: str) -> Fraction:
    """Read a number such as `1,250.5`, `-3`, `twenty-five`, `half` or `3/4`, or raise NotForProgram."""
    text = text.strip().casefold()
    sign = -1 if text.startswith("-") else 1
    body = text.lstrip("-")
    if re.fullmatch(_DIGITS, body):
        return sign * _from_digits(body)
    if body in _PARTS or body.removeprefix("a ") in _PARTS:
        return Fraction(sign, _PARTS[body.removeprefix("a ")])
    return sign * _from_words(body)


def _from_digits(text: str) -> Fraction:
    if len(text) > MOST_DIGITS:
        raise NotForProgram(f"A number must have at most {MOST_DIGITS} characters.")
    return Fraction(text.replace(",", ""))


def _from_words(text: str) -> Fraction:
    total, group, previous = 0, 0, 0
    words = [word for word in re.split(r"[\s-]+", text) if word not in ("a", "an", "and")]
    if text.split()[:1] in (["a"], ["an"]):
        words = ["one", *words]
    last_scale = math.inf
    for word in words:
        if word in _SMALL:
            value = _SMALL[word]
            fits = previous == 0 or (value < 10 and previous >= 20 and previous % 10 == 0) or previous >= 100
            if not fits:
                raise NotForProgram(f"{text!r} is not a single number.")
            group, previous = group + value, value
        elif word == "hundred" and 0 < group < 10:
            group, previous = group * 100, 100
        elif word == "dozen" and len(words) <= 2:
            group = (group or 1) * 12
        elif word in _SCALES and group and _SCALES[word] < last_scale:
            last_scale = _SCALES[word]
            total, group, previous = total + group * _SCALES[word], 0, 100
        else:
            raise NotForProgram(f"{text!r} is not a number.")
    if not words:
        raise NotForProgram(f"{text!r} is not a number.")
    return Fraction(total + group)


def show(value: Fraction) -> str:
    """Write `value` as an exact decimal, or as a fraction with an approximation if the decimal is too long."""
    if value.denominator == 1:
        return f"{value.numerator:,}" if abs(value) < 10**15 else str(value.numerator)
    if value.limit_denominator(10**SHOWN_DIGITS) == value and 10**SHOWN_DIGITS % value.denominator == 0:
        with localcontext(prec=400):
            return f"{Decimal(value.numerator) / value.denominator:,f}"
    return f"about {approximate(value)} ({value.numerator}/{value.denominator})"


def approximate(value: Fraction, digits: int = 6) -> str:
    """Return `value` in significant digits without trailing zeros. Digits before the point are not rounded."""
    with localcontext(prec=MOST_BITS):
        exact = Decimal(value.numerator) / Decimal(value.denominator)
    whole = len(str(abs(int(exact)))) if abs(exact) >= 1 else 0
    if abs(exact) >= 10**15:
        return f"{exact:.{digits - 1}e}"
    places = max(0, digits - whole) if whole else digits - 1 - exact.adjusted() if exact else 0
    text = f"{round(exact, places):,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def check_bits(value: Fraction) -> Fraction:
    """Return `value`. Raise NotForProgram if it has too many digits."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise NotForProgram(
            f"The result is too large. Its numerator and denominator must have at most {MOST_BITS:,} bits."
        )
    return value


def power(base: Fraction, exponent: Fraction) -> Fraction:
    """Return `base ** exponent`. Raise NotForProgram unless the exponent is whole and the result short."""
    if exponent.denominator != 1:
        raise NotForProgram("The exponent must be an integer.")
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) * max(size - 1, 1) > MOST_BITS and base not in (0, 1, -1):
        raise NotForProgram(
            f"The result is too large. Its numerator and denominator must have at most {MOST_BITS:,} bits."
        )
    if base == 0 and exponent <= 0:
        raise NotForProgram("Zero can be raised only to a positive power.")
    return base ** (exponent.numerator if base not in (0, 1, -1) else exponent.numerator % 2 + 2)


def root(value: Fraction, degree: int) -> Fraction:
    """Return the exact root of `value`. Raise NotForProgram if it is not rational."""
    if value < 0:
        raise NotForProgram("Roots of negative numbers are not supported.")
    parts = [_whole_root(part, degree) for part in (value.numerator, value.denominator)]
    if parts[0] ** degree != value.numerator or parts[1] ** degree != value.denominator:
        raise NotForProgram("The root is not a rational number.")
    return Fraction(parts[0], parts[1])


def _whole_root(value: int, degree: int) -> int:
    if degree == 2:
        return math.isqrt(value)
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
    return low


class Expression:
    """Parser and calculator of one expression, by precedence climbing.

    Args:
        variable: function that returns the value of the letter `x`, for polynomials. If it is None, `x`
            between numbers means "times".
        lift: function that converts a number to the kind of value to compute with.
    """

    def __init__(
        self,
        text: str,
        variable: Callable[[], Any] | None = None,
        lift: Callable[[Fraction], Any] = check_bits,
        raise_to: Callable[[Any, Any], Any] = power,
    ) -> None:
        self._variable, self._lift, self._raise_to = variable, lift, raise_to
        self._tokens = self._read(text)
        self._at, self._depth = 0, 0
        self.n_operations = 0

    def value(self) -> Any:
        """Compute the whole expression. Raise NotForProgram if the text is no expression or too large."""
        result = self._binary(0)
        if self._at != len(self._tokens):
            raise NotForProgram("The text is not a single expression.")
        return result

    def _read(self, text: str) -> list[tuple[str, str]]:
        tokens: list[tuple[str, str]] = []
        at, text = 0, text.strip()
        while at < len(text):
            token = _TOKEN.match(text, at)
            if token is None:
                raise NotForProgram("The question contains no calculation that the program can read.")
            if len(tokens) == MOST_TOKENS:
                raise NotForProgram(f"An expression must have at most {MOST_TOKENS} tokens.")
            kind = str(token.lastgroup)
            kind = "number" if kind == "scale" else kind
            tokens.append((kind, token[0].strip().casefold()))
            at = token.end()
        return tokens

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _binary(self, least: int) -> Any:
        value = self._unary()
        while True:
            _, text = self._peek()
            sign = _BINARY.get(text, "")
            if text == "x" and self._variable:
                sign = ""
            if not sign or _PRECEDENCE[sign] < least:
                return value
            self._at += 1
            operand = self._binary(_PRECEDENCE[sign] + (sign != "^"))
            value = self._compute(sign, value, operand)

    def _unary(self) -> Any:
        _, text = self._peek()
        if text in ("-", "−", "minus", "+"):
            self._enter()
            value = self._binary(3)
            self._depth -= 1
            return value if text == "+" else self._lift(Fraction(-1)) * value
        return self._postfix(self._atom())

    def _postfix(self, value: Any) -> Any:
        while (text := self._peek()[1]) in _POSTFIX:
            self._at += 1
            self.n_operations += 1
            degree = _POSTFIX[text]
            value = self._raise_to(value, Fraction(degree)) if degree else self._factorial(value)
        return value

    def _atom(self) -> Any:
        kind, text = self._peek()
        self._at += 1
        if kind == "number":
            return self._times_variable(self._lift(_with_scale(text)))
        if kind == "words":
            return self._times_variable(self._lift(read_number(text)))
        if kind == "part":
            return self._part(text)
        if text == "x" and self._variable:
            return self._variable()
        if text == "(":
            self._depth += 1
            if self._depth > MOST_DEPTH:
                raise NotForProgram(f"Parentheses must be nested at most {MOST_DEPTH} levels deep.")
            value = self._binary(0)
            if self._peek()[1] != ")":
                raise NotForProgram("A parenthesis is not closed.")
            self._at, self._depth = self._at + 1, self._depth - 1
            return value
        return self._function(text)

    def _times_variable(self, value: Any) -> Any:
        """Return `value` times the factor that follows without a sign, as in `2x` and `3(x + 1)`."""
        if self._variable and self._peek()[1] in ("x", "("):
            return self._compute("*", value, self._raise_power(self._atom()))
        return value

    def _raise_power(self, value: Any) -> Any:
        value = self._postfix(value)
        if _BINARY.get(self._peek()[1]) == "^":
            self._at += 1
            return self._compute("^", value, self._binary(4))
        return value

    def _function(self, text: str) -> Any:
        self._enter(step=0)
        operand = self._operand()
        self.n_operations += 1
        if text in _PREFIX and self._variable is None:
            return root(operand, _PREFIX[text])
        if text in _FACTORS:
            return self._compute("*", self._lift(Fraction(_FACTORS[text])), operand)
        if text in ("the square of", "the cube of"):
            return self._raise_to(operand, Fraction(2 if "square" in text else 3))
        if text in ("factorial of", "the factorial of"):
            return self._factorial(operand)
        raise NotForProgram("The expression cannot be read.")

    def _enter(self, step: int = 1) -> None:
        self._at, self._depth = self._at + step, self._depth + 1
        if self._depth > MOST_DEPTH:
            raise NotForProgram(f"The expression must be nested at most {MOST_DEPTH} levels deep.")

    def _part(self, text: str) -> Any:
        """Return the value of a part, such as `half of 10` or `three quarters of 20`."""
        words = text.removesuffix(" of").split()
        name = words[-1] if words[-1] in _PARTS else words[-1].removesuffix("s")
        count = {"two": 2, "three": 3, "four": 4}.get(words[0], 1)
        part = self._lift(Fraction(count, _PARTS[name]))
        if not text.endswith(" of"):
            return part
        self._enter(step=0)
        return self._compute("*", part, self._operand())

    def _operand(self) -> Any:
        """Return the operand of a function in words. `half of 10 plus 2` is ambiguous and rejected."""
        operand = self._binary(3)
        self._depth -= 1
        kind, text = self._peek()
        if kind == "word" and text in _BINARY:
            raise NotForProgram("The expression is ambiguous. Add parentheses.")
        return operand

    def _factorial(self, value: Any) -> Any:
        if not isinstance(value, Fraction) or value.denominator != 1 or not 0 <= value <= MOST_FACTORIAL:
            raise NotForProgram(f"A factorial needs an integer from 0 to {MOST_FACTORIAL}.")
        return Fraction(math.factorial(value.numerator))

    def _compute(self, sign: str, a: Any, b: Any) -> Any:
        self.n_operations += 1
        if sign == "^":
            return self._raise_to(a, b)
        if sign in ("/", "mod") and not b:
            raise NotForProgram("Division by zero is undefined.")
        match sign:
            case "+":
                result = a + b
            case "-":
                result = a - b
            case "*":
                result = a * b
            case "mod":
                result = a % b
            case _:
                result = a / b
        return check_bits(result) if isinstance(result, Fraction) else result


def _with_scale(text: str) -> Fraction:
    for name, times in _SCALES.items():
        if text.endswith(name):
            return _from_digits(text.removesuffix(name).strip()) * times
    return _from_digits(text)


def compute(text: str) -> tuple[Fraction, int]:
    """Return the exact value of an expression and the number of its operations, or raise NotForProgram."""
    expression = Expression(text)
    return expression.value(), expression.n_operations
