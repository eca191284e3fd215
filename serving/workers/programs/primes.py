"""Prime numbers for the calculator: whether and why a number is prime, and its prime factors."""

import math
import re
from typing import Any

from serving.workers.programs.expressions import NUMBER
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.puzzles import WHAT, whole_number
from serving.workers.programs.rules import ExactAnswer, Rule, load, pattern


def _prime(match: re.Match[str]) -> ExactAnswer:
    factorint: Any = load("sympy").factorint

    number = whole_number(match[1])
    factors: dict[int, int] = factorint(number) if number > 1 else {}
    if number > 1 and factors == {number: 1}:
        return ExactAnswer(f"Yes, {number:,} is a prime number.", "Yes")
    why = f": it is {_product(factors)}" if factors else ""
    return ExactAnswer(f"No, {number:,} is not a prime number{why}.", "No")


def _why_prime(match: re.Match[str]) -> ExactAnswer:
    number = whole_number(match[1])
    if number < 2:
        raise NotForProgram("Numbers below 2 have no prime factors.")
    factors: dict[int, int] = load("sympy").factorint(number)
    if factors != {number: 1}:
        return ExactAnswer(f"{number:,} is not a prime number, because it is {_product(factors)}.")
    end = math.isqrt(number)
    why = (
        f"no whole number from 2 to {end:,} divides it"
        if end > 2
        else "only 1 and the number itself divide it"
    )
    return ExactAnswer(f"{number:,} is a prime number, because {why}.")


def _product(factors: dict[int, int]) -> str:
    return " × ".join(f"{prime}^{count}" if count > 1 else f"{prime}" for prime, count in factors.items())


def _prime_factors(match: re.Match[str]) -> ExactAnswer:
    factorint: Any = load("sympy").factorint

    if (number := whole_number(match[1])) < 2:
        raise NotForProgram("Numbers below 2 have no prime factors.")
    product = _product(factorint(number))
    return ExactAnswer(f"The prime factors of {number:,}: {number} = {product}.", product)


_N = rf"({NUMBER})"
PRIMES: tuple[Rule, ...] = (
    (pattern(rf"is (?:the number )?{_N} (?:a )?prime(?: number)?"), _prime),
    (pattern(rf"why (?:is|isn't) (?:the number )?{_N} (?:not )?(?:a )?prime(?: number)?"), _why_prime),
    (pattern(rf"{WHAT}prime (?:factors|factori[sz]ation) of {_N}"), _prime_factors),
)  # fmt: skip
