"""Polynomials in one variable for the calculator: equations, factors, expansions and derivatives, with SymPy.

SymPy never reads text: `expressions.Expression` builds the polynomials. Their degree and coefficients are bounded after
each operation.
"""

import re
from fractions import Fraction
from typing import Any

from serving.workers.programs.expressions import Expression
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, load

MOST_DEGREE, MOST_COEFFICIENT_BITS = 8, 200


def polynomial_answer(match: re.Match[str]) -> ExactAnswer:
    """Answer a command (group `what`) about an expression or equation (`e`) in a variable (`letter`, or the
    only one).
    """
    text, what = match["e"], match["what"].casefold()
    letter = match["letter"] or _only_letter(text)
    if letter != "x" and "x" in text.casefold():
        raise NotForProgram("Only expressions with one variable are supported.")
    sides = [_polynomial(side, letter) for side in text.split("=")]
    if what in ("solve", "find"):
        if len(sides) != 2:
            raise NotForProgram("An equation must have exactly one equals sign.")
        return _solution(letter, text, sides[0] - sides[1])
    if len(sides) != 1:
        raise NotForProgram("This command applies to an expression, not to an equation.")
    if what.startswith("factor"):
        return ExactAnswer(f"{text} = {_factor_text(sides[0])}.", _factor_text(sides[0]))
    if what in ("expand", "simplify"):
        return ExactAnswer(f"{text} = {_written(sides[0])}.", _written(sides[0]))
    result = _written(sides[0].diff())
    return ExactAnswer(f"The derivative of {text} is {result}.", result)


def check_solution(match: re.Match[str]) -> ExactAnswer:
    """Answer whether the solution of an equation (group `e`) is right, with the value of both sides."""
    text = match["e"].strip()
    letter = match["letter"] or _only_letter(text)
    sides = [_polynomial(side, letter) for side in text.split("=")]
    if len(sides) != 2:
        raise NotForProgram("An equation must have exactly one equals sign.")
    roots: dict[Any, int] = load("sympy").roots(sides[0] - sides[1], cubics=False, quartics=False)
    if not roots or not all(
        each.is_rational and sides[0].eval(each) == sides[1].eval(each) for each in roots
    ):
        raise NotForProgram("Not all solutions of the equation can be checked exactly.")
    parts = [f"for {letter} = {each}, both sides are {sides[0].eval(each)}" for each in sorted(roots)]
    return ExactAnswer(f"The solution of {text} is right: {'; '.join(parts)}.")


def _only_letter(text: str) -> str:
    letters = set(re.findall(r"[a-z]", text.casefold()))
    if len(letters) != 1 or letters & {"e", "i"}:
        raise NotForProgram("Only expressions with one variable, other than e and i, are supported.")
    return letters.pop()


def _polynomial(text: str, letter: str) -> Any:
    sympy = load("sympy")
    symbol = sympy.Symbol(letter)

    def lift(value: Fraction) -> Any:
        return sympy.Poly(sympy.Rational(value.numerator, value.denominator), symbol, domain=sympy.QQ)

    return _check_size(
        _Polynomial(
            text.casefold().replace(letter, "x"),
            lambda: sympy.Poly(symbol, symbol, domain=sympy.QQ),
            lift,
            _power,
        ).value()
    )


def _power(base: Any, exponent: Any) -> Any:
    degree = exponent if isinstance(exponent, Fraction) else _constant(exponent)
    if degree.denominator != 1 or not 0 <= degree * max(base.degree(), 1) <= MOST_DEGREE:
        raise NotForProgram(
            f"Exponents must be integers from 0 to {MOST_DEGREE}, and the degree of a polynomial must be at most {MOST_DEGREE}."
        )
    return _check_size(base ** int(degree))


class _Polynomial(Expression):
    """Expression whose values are polynomials. Divisors and exponents must be numbers."""

    def _compute(self, sign: str, a: Any, b: Any) -> Any:
        if sign in ("/", "mod"):
            if sign == "mod" or not (divisor := _constant(b)):
                raise NotForProgram(
                    "Polynomials can be divided only by nonzero numbers, and mod is not supported."
                )
            return _check_size(a * self._lift(1 / divisor))
        return _check_size(super()._compute(sign, a, b))


def _check_size(polynomial: Any) -> Any:
    sizes = (max(int(each.p).bit_length(), int(each.q).bit_length()) for each in polynomial.coeffs())
    if polynomial.degree() > MOST_DEGREE or max(sizes) > MOST_COEFFICIENT_BITS:
        raise NotForProgram(
            f"A polynomial must have a degree of at most {MOST_DEGREE} and coefficients of at most {MOST_COEFFICIENT_BITS} bits."
        )
    return polynomial


def _constant(polynomial: Any) -> Fraction:
    if polynomial.degree() > 0:
        raise NotForProgram("A divisor or exponent must not contain the variable.")
    value = polynomial.LC()
    return Fraction(int(value.p), int(value.q))


def _written(expression: Any) -> str:
    plain = expression.as_expr() if hasattr(expression, "as_expr") else expression
    return re.sub(r"(?<=\d)\*(?=[a-z(])", "", str(plain).replace("**", "^"))


def _factor_text(polynomial: Any) -> str:
    constant, powers = polynomial.factor_list()
    parts = [f"({_written(each)})" + (f"^{count}" if count > 1 else "") for each, count in powers]
    if len(parts) < 2 and (not powers or powers[0][1] == 1):
        raise NotForProgram("The polynomial cannot be factored over the rational numbers.")
    return ("" if constant == 1 else "-" if constant == -1 else str(constant)) + "".join(parts)


def _solution(letter: str, text: str, polynomial: Any) -> ExactAnswer:
    if polynomial.degree() < 1:
        raise NotForProgram("The equation does not depend on its variable.")
    roots: dict[Any, int] = load("sympy").roots(polynomial, cubics=False, quartics=False)
    if sum(roots.values()) != polynomial.degree() or any(each.is_real is None for each in roots):
        raise NotForProgram("The equation has solutions that cannot be written exactly.")
    real = sorted((each for each in roots if each.is_real), key=lambda each: float(each))
    if not real:
        return ExactAnswer(f"{text} has no real solution.", "no real solution")
    shown = [_written(each) + ("" if each.is_rational else f" (about {float(each):.6g})") for each in real]
    value = " or ".join(f"{letter} = {each}" for each in shown)
    return ExactAnswer(f"{text} has the solution{'s' if len(real) > 1 else ''} {value}.", value)
