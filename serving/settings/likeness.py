"""How alike two cards are, by the words that they share."""

import re
from collections import Counter
from math import sqrt

COMMON = frozenset(
    re.findall(
        r"\w+",
        """
        a about all also an and any are as at be been but by can do does done for from good great has
        have how if in into is it its just like many model more most much must no not of on one only or
        other others out own so some strong such than that the their them then these they things this
        those to up use used very well what when where which who whom will with work works best better
        """,
    )
)
"""Words that say nothing of what somebody is good at."""


def likeness(one: str, other: str) -> float:
    """The cosine of the two texts' counts of words: 0, no word in common, to 1.

    Args:
        one: a card.
        other: another.
    """
    mine, theirs = _words(one), _words(other)
    shared = sum(count * theirs[word] for word, count in mine.items())
    return shared / (_length(mine) * _length(theirs)) if shared else 0.0


def _words(card: str) -> Counter[str]:
    """How often each word of a card is in it; a plural is its singular, as far as an `s` tells."""
    words = re.findall(r"[^\W\d_]{2,}", card.lower())
    return Counter(word.removesuffix("s") for word in words if word not in COMMON)


def _length(words: Counter[str]) -> float:
    return sqrt(sum(count * count for count in words.values()))
