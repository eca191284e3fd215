"""Rules of programs: a regular expression for a whole question, and the function that answers a match of it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from serving.workers.programs.process import NotForProgram
from serving.workers.programs.question import PlainQuestion

_PRONOUNS = ("it", "this", "that", "them", "these", "those")
_NAMES_OF_WORDS = ("word", "text", "one", "other", "name")
"""Beginnings of the names of groups for the word or thing that a question is about."""


@dataclass(frozen=True, slots=True)
class ExactAnswer:
    """Answer of a program: a full sentence, and the value alone for users who ask for nothing else."""

    sentence: str
    value: str = ""


def pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression for a whole question. A space matches any whitespace, and case is ignored."""
    return re.compile(text, re.IGNORECASE)


def load(module: str) -> Any:
    """Import a package when the first question needs it, because some imports take a second. It has no types."""
    return import_module(module)


Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], ExactAnswer]]
"""Regular expression for a whole question, and the function that answers a match of it."""


def with_one_name(match: re.Match[str]) -> re.Match[str]:
    """Return a match with one group per name, for patterns with several places for a text: `word2` and `word_b` are other
    places of `word`. Groups that matched nothing are empty.
    """
    groups: dict[str, str] = {}
    for place, text in match.groupdict().items():
        name = re.sub(r"(?:_[bc]|\d)$", "", place)
        groups[name] = groups.get(name) or text or ""
    parts = "\n".join(f"(?P<{name}>{re.escape(text)})" for name, text in groups.items())
    result = re.fullmatch(parts, "\n".join(groups.values()))
    assert result is not None
    return result


def _check_words(match: re.Match[str]) -> None:
    """Raise NotForProgram if the question is about a pronoun without quotation marks, as in "write it backwards"."""
    for name, text in match.groupdict().items():
        if (text or "").casefold() not in _PRONOUNS or not name.startswith(_NAMES_OF_WORDS):
            continue
        if not re.search(rf"[\"']{text}[\"']|\bword {text}\b", match[0]):
            raise NotForProgram(f'The question does not say what "{text}" means.')


def answer_by(rules: Sequence[Rule], question: PlainQuestion) -> ExactAnswer:
    """Return the answer of the first rule that matches and has one. NotForProgram has the reason of the first
    match.
    """
    reasons: list[str] = []
    for each, rule in rules:
        if match := each.fullmatch(question.text):
            try:
                _check_words(match)
                return rule(match)
            except NotForProgram as reason:
                reasons.append(str(reason))
    raise NotForProgram(next(iter(reasons), "The program does not understand the question."))
