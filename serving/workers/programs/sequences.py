"""Series for the calculator and the dictionary: the next and the missing member of series of numbers, letters, days and
months, and analogies.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from serving.workers.programs.date_text import MONTHS, WEEKDAYS
from serving.workers.programs.expressions import read_number, show
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, pattern

MOST_ITEMS = 20
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NAMES = (
    WEEKDAYS,
    MONTHS,
    ["spring", "summer", "autumn", "winter"],
    ["first", "second", "third", "fourth", "fifth", "sixth"],
)
_ASK = re.compile(
    r"(?:(?:what|which)(?: is| are| comes| number| letter| day| month| word| one| goes| should come)*(?: the)?(?: next| missing)?"
    r"(?: number| letter| day| month| term| one| element)?(?: comes| come| is| goes)?(?: next| missing| after that)?"
    r"|continue|complete|fill in|find|give|name|write|tell me)(?: the)?(?: next| missing| following)?(?: number| letter| day| month| term| blank)?"
    r"(?: in| of| for)?(?: the| this| following)*(?: number| letter)?(?: sequence| series| pattern| list| row)?(?: here)?(?: with the next number)?",
    re.IGNORECASE,
)


def _next_number(values: Sequence[Fraction]) -> Fraction:
    """Return the number that continues an arithmetic, geometric, square or Fibonacci series.

    Raises:
        NotForProgram: the series follows none of these rules.
    """
    steps = [b - a for a, b in itertools.pairwise(values)]
    if len(values) >= 3 and len(set(steps)) == 1:
        return values[-1] + steps[0]
    if len(values) >= 3 and 0 not in values and len({b / a for a, b in itertools.pairwise(values)}) == 1:
        return values[-1] * values[-1] / values[-2]
    if len(values) >= 4:
        if len({b - a for a, b in itertools.pairwise(steps)}) == 1:
            return values[-1] + 2 * steps[-1] - steps[-2]
        if len(values) >= 5 and all(
            a + b == c for a, b, c in zip(values, values[1:], values[2:], strict=False)
        ):
            return values[-1] + values[-2]
    raise NotForProgram("The program does not see the rule of this series.")


def _numbers(items: list[str]) -> list[Fraction | None]:
    return [None if re.fullmatch(r"_+|\?|x|…|\.{3}", item) else read_number(item) for item in items]


def _missing_number(values: list[Fraction | None]) -> Fraction:
    at = values.index(None)
    points = [(place, value) for place, value in enumerate(values) if value is not None]
    if len(points) < 3 or values.count(None) != 1:
        raise NotForProgram("Exactly one number must be missing, and three must be known.")
    (p0, v0), (p1, v1) = points[0], points[1]
    step = (v1 - v0) / (p1 - p0)
    if any(value != v0 + step * (place - p0) for place, value in points):
        raise NotForProgram("The program does not see the rule of this series.")
    return v0 + step * (at - p0)


def _answer(items: list[str], *, has_gap: bool) -> str:
    if all(re.fullmatch(r"-?[\d,.]+|_+|\?|[a-z]+", item, re.IGNORECASE) for item in items) and re.search(
        r"\d", items[0]
    ):
        values = _numbers(items)
        if has_gap:
            return show(_missing_number(values))
        return show(_next_number([value for value in values if value is not None]))
    if all(re.fullmatch(r"[a-z]|_+|\?", item, re.IGNORECASE) for item in items):
        places = [None if item[0] in "_?" else Fraction(_LETTERS.index(item.upper())) for item in items]
        number = _missing_number(places) if has_gap else _next_number([p for p in places if p is not None])
        if number.denominator != 1 or not 0 <= number < 26:
            raise NotForProgram("The series leaves the alphabet.")
        letter = _LETTERS[int(number)]
        return letter if items[0].isupper() else letter.lower()
    for names in _NAMES:
        lower = [name.casefold() for name in names]
        if all(item.casefold() in lower for item in items) and not has_gap:
            numbers = [Fraction(lower.index(item.casefold())) for item in items]
            steps = {(b - a) % len(names) for a, b in itertools.pairwise(numbers)}
            if len(steps) == 1:
                return names[int(numbers[-1] + steps.pop()) % len(names)]
    raise NotForProgram("The program does not see the rule of this series.")


def _series(match: re.Match[str]) -> ExactAnswer:
    head, text = match["head"].strip(" :,.?"), match["items"]
    if not _ASK.fullmatch(head):
        raise NotForProgram("The program does not understand the question.")
    text = re.sub(r"[\s,]*(?:and so on|etc\.?|\.{2,}|…)\s*$", "", text.strip(" ."))
    items = [item.strip(" \"'.") for item in re.split(r",\s+|,|\s+", text) if item.strip(" \"'.")]
    if items and re.fullmatch(r"_+|\?", items[-1]):
        items = items[:-1]
    has_gap = any(re.fullmatch(r"_+|\?", item) for item in items)
    if not 2 <= len(items) <= MOST_ITEMS:
        raise NotForProgram("A series must have 2 to 20 members.")
    value = _answer(items, has_gap=has_gap)
    return ExactAnswer(f"The {'missing' if has_gap else 'next'} one is {value}.", value)


_ITEM = r"(?:-?\d{1,15}(?:\.\d{1,9})?|_+|\?|[a-z](?![a-z])|[a-z]{3,9})"
SERIES: tuple[Rule, ...] = (
    (pattern(rf"(?P<head>[a-z ]{{4,60}}?)[:,.?]*\s+(?P<items>{_ITEM}(?:,? +{_ITEM}|,{_ITEM})+,?\s*(?:and so on|\.{{2,}}|…|_+|\?)?)"), _series),
)  # fmt: skip


def analogy(relations: Sequence[Callable[[str, str, str], str | None]]) -> Rule:
    """Return the rule for "hot is to cold as up is to what".

    Args:
        relations: functions that return the word that relates to the third word as the second one does to the first,
            or None.
    """

    def answer(match: re.Match[str]) -> ExactAnswer:
        words = [match[name].casefold() for name in ("a", "b", "c")]
        for relation in relations:
            if fourth := relation(words[0], words[1], words[2]):
                return ExactAnswer(
                    f"{match['a'].capitalize()} is to {match['b']} as {match['c']} is to {fourth}.", fourth
                )
        raise NotForProgram("The program does not know how these words are related.")

    word = r"[\"']?(?:an? |the )?(?P<{0}>[a-z-]+)[\"']?"
    return (
        pattern(
            rf"(?:complete the analogy:? ?|finish the analogy:? ?|fill in the blank:? ?)?{word.format('a')} is to {word.format('b')}"
            rf"(?:,? as|:) {word.format('c')} is to (?:what|which word|_+|\.\.\.|…)"
        ),
        answer,
    )
