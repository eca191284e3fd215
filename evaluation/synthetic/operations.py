"""Operations that synthetic questions ask for, and their solutions.

An operation takes one operand, which is a number or a word, and gives one result. Two operations can be
chained if the second one takes what the first one gives.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Sort = Literal["number", "word"]
RESULT = "the result"
"""Name of the first part's result in the second part of a question."""
ROMAN = (
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"),
    (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
)  # fmt: skip
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True, slots=True)
class TaskOperation:
    """Operation that a question can ask for.

    Args:
        wordings: the templates of its wording. `{x}` is the operand, and `{a}` and `{b}` are small numbers.
        solve: a function that returns the result for an operand and the numbers, in the order of their names.
            It raises `ValueError` for an operand of another sort.
    """

    family: str
    takes: Sort
    gives: Sort
    wordings: tuple[str, ...]
    solve: Callable[[str, list[int]], str]

    def phrase(self, rng: random.Random, operand: str) -> str:
        """Return the operation in words, with random small numbers."""
        return rng.choice(self.wordings).format(x=operand, a=rng.randint(2, 9), b=rng.randint(1, 9))


@dataclass(frozen=True, slots=True)
class TaskPart:
    operation: TaskOperation
    operand: str
    """The number or word, or `RESULT` if it is the result of another part."""
    numbers: tuple[int, ...]

    def solve(self, operand: str) -> str:
        """Return the result for `operand`. Raise ValueError if the operation does not apply."""
        return self.operation.solve(operand, list(self.numbers))


def roman(number: int) -> str:
    """Return `number` in Roman numerals. Raise ValueError if there are none."""
    if not 0 < number < 4000:
        raise ValueError(f"{number} has no Roman numeral")
    digits = ""
    for value, letters in ROMAN:
        count, number = divmod(number, value)
        digits += letters * count
    return digits


def caesar(word: str, by: int) -> str:
    """Shift each letter `by` places in the alphabet, wrapping around at its end. Case is kept."""
    base = "".join(
        chr((ord(c) - ord(a) + by) % 26 + ord(a)) for c in word for a in ["A" if c.isupper() else "a"]
    )
    return base if word.isalpha() and word.isascii() else _no_word(word)


def _no_word(word: str) -> str:
    raise ValueError(f"{word!r} is not a word")


def _word(text: str) -> str:
    return text if text.isalpha() and text.isascii() else _no_word(text)


def _digits(text: str) -> str:
    return "".join(sorted(str(int(text))))


OPERATIONS: tuple[TaskOperation, ...] = (
    TaskOperation(
        "arithmetic",
        "number",
        "number",
        ("work out {x} * {a} + {b}", "multiply {x} by {a} and add {b}"),
        lambda x, n: str(int(x) * n[0] + n[1]),
    ),
    TaskOperation(
        "strings",
        "word",
        "word",
        ("spell {x} backwards", "reverse the letters of {x}"),
        lambda x, n: _word(x)[::-1],
    ),
    TaskOperation(
        "numerals",
        "number",
        "word",
        ("write {x} as a Roman numeral", "turn {x} into a Roman numeral"),
        lambda x, n: roman(int(x)),
    ),
    TaskOperation(
        "ciphers",
        "word",
        "word",
        ("encode {x} with a Caesar shift of {a}", "shift each letter of {x} by {a}"),
        lambda x, n: caesar(_word(x), n[0]),
    ),
    TaskOperation(
        "logic",
        "number",
        "word",
        ("say yes or no: is {x} odd or a multiple of {a}", "is {x} odd or a multiple of {a}, yes or no"),
        lambda x, n: "yes" if int(x) % 2 or int(x) % n[0] == 0 else "no",
    ),
    TaskOperation(
        "ordering",
        "word",
        "word",
        ("sort the letters of {x}", "put the letters of {x} in order"),
        lambda x, n: "".join(sorted(_word(x), key=str.lower)),
    ),
    TaskOperation(
        "ordering",
        "number",
        "number",
        ("sort the digits of {x}", "put the digits of {x} in order"),
        lambda x, n: _digits(x),
    ),
)
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(operation.family for operation in OPERATIONS))
"""Names of the skills: arithmetic, strings, numerals, ciphers, logic, ordering."""


def _pattern(wording: str) -> re.Pattern[str]:
    escaped = re.escape(wording).replace(r"\{x\}", rf"(?P<x>{RESULT}|\w+)")
    return re.compile(re.sub(r"\\\{([ab])\\\}", r"(?P<\1>\\d+)", escaped), re.IGNORECASE)


_READ = [(operation, _pattern(wording)) for operation in OPERATIONS for wording in operation.wordings]


def read(text: str) -> TaskPart | None:
    """Return the operation that `text` asks for, or None if it asks for none."""
    for operation, pattern in _READ:
        if match := pattern.search(text):
            groups = match.groupdict()
            numbers = tuple(int(groups[name]) for name in ("a", "b") if name in groups)
            operand = groups["x"]
            if operand.lower() == RESULT or operand.isdigit() == (operation.takes == "number"):
                return TaskPart(operation, RESULT if operand.lower() == RESULT else operand, numbers)
    return None


def of_result(operation: TaskOperation, first: TaskOperation) -> bool:
    """Return whether `operation` belongs to another family than `first` and can take its result."""
    return operation.takes == first.gives and operation.family != first.family


def operand(rng: random.Random, sort: Sort, digits: int = 2) -> str:
    """Return a number of `digits` digits without zeros, or an invented word of two or three syllables."""
    if sort == "number":
        return "".join(str(rng.randint(1, 9)) for _ in range(digits))
    return "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(2, 3)))
