"""Similarity of two workers' cards, by the words that they share."""

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
"""Words that say nothing about a worker's abilities."""


def likeness(one: str, other: str) -> float:
    """Return the cosine similarity of the word counts of two cards, from 0 (no word in common) to 1."""
    mine, theirs = _words(one), _words(other)
    shared = sum(count * theirs[word] for word, count in mine.items())
    return shared / (_length(mine) * _length(theirs)) if shared else 0.0


def _words(card: str) -> Counter[str]:
    """Return how often each word occurs in a card. A final `s` is removed, to count plurals with their
    singular.
    """
    words = re.findall(r"[^\W\d_]{2,}", card.lower())
    return Counter(word.removesuffix("s") for word in words if word not in COMMON)


def _length(words: Counter[str]) -> float:
    return sqrt(sum(count * count for count in words.values()))
