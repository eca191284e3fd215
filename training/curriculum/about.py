"""Whether a subtask is about a request: it names it by its own words, not by a phrase that fits any."""

import re

COMMON = frozenset(
    [
        "a",
        "about",
        "after",
        "all",
        "also",
        "an",
        "and",
        "any",
        "are",
        "as",
        "at",
        "be",
        "but",
        "by",
        "can",
        "do",
        "for",
        "from",
        "get",
        "give",
        "has",
        "have",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "just",
        "me",
        "more",
        "my",
        "no",
        "not",
        "of",
        "on",
        "one",
        "only",
        "or",
        "out",
        "please",
        "result",
        "so",
        "some",
        "than",
        "that",
        "the",
        "their",
        "them",
        "then",
        "there",
        "these",
        "this",
        "to",
        "two",
        "up",
        "use",
        "using",
        "want",
        "what",
        "when",
        "where",
        "which",
        "who",
        "why",
        "will",
        "with",
        "you",
        "your",
    ]
)
"""Words that say nothing of what is asked."""


def own_words(clause: str) -> frozenset[str]:
    """The words of `clause` that tell it from other clauses."""
    return frozenset(word for word in re.findall(r"\w+", clause.lower()) if word not in COMMON)


def is_about(subtask: str, clause: str) -> bool:
    """Whether `subtask` names a part by its own words: at least a third of them, and no fewer than one."""
    words = own_words(clause)
    return 3 * len(words & own_words(subtask)) >= max(len(words), 1)
