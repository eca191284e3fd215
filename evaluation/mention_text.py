"""Normalise text and find the numbers in it. `evaluation.grading_mentions` uses this to judge answers."""

import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal

_UNITS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SMALL = "|".join(_UNITS[1:10])
_SPELLED = re.compile(
    rf"(?<!\w)(?:(?:(?P<hundreds>{_SMALL}|an?)\s+)?(?P<power>hundred|thousand)"
    rf"|(?P<tens>{'|'.join(_TENS)})(?:[\s-]+(?P<rest>{_SMALL}))?"
    rf"|(?P<unit>{'|'.join(sorted(_UNITS, key=len, reverse=True))}))(?!\w)"
)
_DIGITS = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\d_])(?!(?:st|nd|rd|th)\b)")
_QUOTES = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "`": "'", "–": "-", "—": ",", "…": "."})
_MARKDOWN = re.compile(r"[*_#~\\$]+")
_SPELLED_OUT = re.compile(r"(?<!\w)(?<!\w')(?:[a-z][ -]){2,}[a-z](?!\w)")


def plain(text: str) -> str:
    """Return `text` in lower case without accents, Markdown, thousands separators and hyphens of spelled
    words.
    """
    letters = unicodedata.normalize("NFKD", text.translate(_QUOTES))
    text = "".join(each for each in letters if not unicodedata.combining(each)).casefold()
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", _MARKDOWN.sub("", text))
    return _SPELLED_OUT.sub(lambda match: re.sub(r"[ -]", "", match.group()), text)


def numbers_in(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield each number of a `plain` text in digits, with start and end. Words count to ninety-nine, and
    round ones.
    """
    for match in _DIGITS.finditer(text):
        yield format(Decimal(match.group()).normalize(), "f"), match.start(), match.end()
    for match in _SPELLED.finditer(text):
        yield str(_value(match)), match.start(), match.end()


def _value(match: re.Match[str]) -> int:
    if power := match["power"]:
        times = _UNITS.index(match["hundreds"]) if match["hundreds"] in _UNITS else 1
        return times * (100 if power == "hundred" else 1000)
    if tens := match["tens"]:
        return 10 * (_TENS.index(tens) + 2) + (_UNITS.index(match["rest"]) if match["rest"] else 0)
    return _UNITS.index(match["unit"])
