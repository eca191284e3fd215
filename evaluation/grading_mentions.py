"""Judge short answers in free text: does the answer mention what was asked for, and nothing else?

Only the first `evaluation.answer_extraction.OPENING_WORDS` words are read. Of those, only the first part
that contains a candidate and is not a question counts: a right word that appears later does not count.
Candidates are the accepted and the refused mentions, and every number if a number is accepted. The rules:

`one`: the first clause with a candidate has an accepted one and no refused one.

* A clause ends at the end of a sentence, at a new line, and before words such as `because`, `than`, `not` or
  `but`.
* A candidate right after `not` does not count. Nor does one before the last `=` or in parentheses, if there
  is another.
* A list of alternatives is not a choice. Candidates joined by commas, `and` or `or` are removed if one of
  them is refused, or if there are three or more items of which one is not accepted. If no candidate is left,
  the answer is wrong.

`several`: the first sentence with a candidate has exactly `count` accepted ones, no refused one, and no list
with an item that is neither. The lines of a list are one sentence.

`sequence`: the candidates of that sentence are the accepted ones in their order, optionally after the
question's order.

`start`: the answer begins with an accepted mention. No refused one stands before the first comma of the first
sentence, or right after a comma.

`whole`: the answer is an accepted mention and nothing else except punctuation.

A mention is a word or phrase between word boundaries. Case, accents, Markdown and hyphens between its words
are ignored; `cat(s)` stands for cat and cats. Numbers match as digits and as words. A number of the question,
and 1, are not candidates unless they are listed.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from evaluation.mention_text import numbers_in, plain

Rule = Literal["one", "several", "sequence", "start", "whole"]
RULES: tuple[Rule, ...] = get_args(Rule)

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+|\n+")
_CLAUSE_START = re.compile(
    r"\b(?:because|since|than|but|while|whereas|unlike|instead of|rather than|compared (?:to|with)|although)\b"
    r"|\bthough\b|, which\b|\bnot\b|n't\b"
)
_NEGATION = re.compile(r"(?:not|n't)\s+(?:\w+\s+)?[\s\"'(]*$")
_PARENTHESES = re.compile(r"\([^()]*\)")
_SEPARATOR = re.compile(r"\s*(?:[,;/&\n]|\b(?:and|or)\b)(?:\s*(?:,|\b(?:and|or)\b))*\s*")
_FILLERS = frozenset(
    {"of course", "indeed", "yes", "sure", "certainly", "in fact", "please", "therefore", "so"}
)
_ARTICLE = re.compile(r"^[\s\"'(]*(?:(?:a|an|the)\s+)?[\"'(]*")
_PUNCTUATION = " \t\n.,;:!?\"'()[]-"


@dataclass(frozen=True, slots=True)
class Mention:
    """Accepted or refused item, or number, found from `start` until before `end`."""

    item: str
    start: int
    end: int
    accepted: bool


class Candidates:
    """Accepted (right) and refused (wrong) items to search for in the answers to a question."""

    def __init__(self, question: str, accepted: Sequence[str], refused: Sequence[str] = ()) -> None:
        sides = [(item, True) for item in accepted] + [(item, False) for item in refused]
        self._patterns = [(item, right, _pattern(item)) for item, right in sides if not item.isdigit()]
        self._numbers = {item: right for item, right in sides if item.isdigit()}
        self._neutral = {number for number, _, _ in numbers_in(plain(question))} | {"1"}
        self._asks_number = any(self._numbers.values())

    def find(self, text: str) -> list[Mention]:
        """Return the mentions in a `plain` text in order. If mentions overlap, the one that
        starts first wins, and then the longest.
        """
        mentions = [
            Mention(item, match.start(), match.end(), right)
            for item, right, pattern in self._patterns
            for match in pattern.finditer(text)
        ]
        if self._numbers:
            mentions += [
                Mention(number, start, end, self._numbers.get(number, False))
                for number, start, end in numbers_in(text)
                if number in self._numbers or (self._asks_number and number not in self._neutral)
            ]
        result: list[Mention] = []
        for mention in sorted(mentions, key=lambda each: (each.start, -each.end, not each.accepted)):
            if not result or mention.start >= result[-1].end:
                result.append(mention)
        return result


def mention_fault(question: str, facts: Mapping[str, Any], opening: str) -> str:
    """Return why `opening` is not right, or "". `facts` has `accepted`, and optionally `refused`, `rule` and
    `count`.
    """
    accepted: Sequence[str] = facts["accepted"]
    candidates = Candidates(question, accepted, facts.get("refused", ()))
    text = plain(opening)
    match facts.get("rule", "one"):
        case "several":
            return _several(text, candidates, facts["count"])
        case "sequence":
            return _sequence(text, candidates, accepted, candidates.find(plain(question)))
        case "start":
            return _start(text, candidates)
        case "whole":
            mentions = candidates.find(text)
            alone = len(mentions) == 1 and mentions[0].accepted and _is_whole(text, mentions[0])
            return "" if alone else "the text is not exactly an accepted answer"
        case _:
            return _one(text, candidates)


def _one(text: str, candidates: Candidates) -> str:
    for clause in _clauses(text):
        if mentions := _read(clause, candidates):
            remaining = _without_lists(clause, mentions)
            if not remaining:
                return "the text lists alternatives without choosing one"
            return _refusal(remaining)
    return "the first words mention no accepted answer"


def _several(text: str, candidates: Candidates, count: int) -> str:
    sentence, mentions = _first_sentence(text, candidates)
    if fault := _refusal(mentions):
        return fault
    named = len({mention.item for mention in mentions})
    if named != count:
        return f"the text names {named} accepted answers instead of {count}"
    if _without_lists(sentence, mentions) != mentions:
        return "the text lists something that is not an accepted answer"
    return ""


def _sequence(
    text: str, candidates: Candidates, accepted: Sequence[str], question_mentions: Sequence[Mention]
) -> str:
    order = [mention.item for mention in _first_sentence(text, candidates)[1]]
    echo = [mention.item for mention in question_mentions]
    return "" if order in (list(accepted), echo + list(accepted)) else "the order is wrong or incomplete"


def _start(text: str, candidates: Candidates) -> str:
    first, *rest = re.split(r"[,;:]\s*", _SENTENCE_END.split(text.strip(_PUNCTUATION))[0])
    mentions = candidates.find(first)
    if not mentions or mentions[0].start != 0 or not mentions[0].accepted:
        return "the text does not begin with an accepted answer"
    after_commas = [mention for part in rest for mention in candidates.find(part)[:1] if mention.start == 0]
    return _refusal(mentions + after_commas)


def _refusal(mentions: Sequence[Mention]) -> str:
    if wrong := [mention.item for mention in mentions if not mention.accepted]:
        return f"the text mentions {wrong[0]!r}, which is wrong"
    return "" if mentions else "the first words mention no accepted answer"


def _first_sentence(text: str, candidates: Candidates) -> tuple[str, list[Mention]]:
    for sentence in _sentences(re.sub(r"(?<![.!?\s])\s*\n+\s*", ", ", text)):
        if mentions := candidates.find(sentence):
            return sentence, mentions
    return "", []


def _read(clause: str, candidates: Candidates) -> list[Mention]:
    """Return the mentions in a clause that count. One after `not` does not. Those before the last `=` or in
    parentheses count only if there are no others.
    """
    mentions = [each for each in candidates.find(clause) if not _NEGATION.match(clause[: each.start])]
    result = [each for each in mentions if each.start > clause.rfind("=")]
    spans = [match.span() for match in _PARENTHESES.finditer(clause)]
    outside = [each for each in result if not any(start < each.start < end for start, end in spans)]
    return outside or result or mentions


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences that are not questions. A model may repeat the question before it answers."""
    return (
        each
        for each in _SENTENCE_END.split(text)
        if not each.rstrip(_PUNCTUATION.replace("?", "")).endswith("?")
    )


def _clauses(text: str) -> Iterator[str]:
    for sentence in _sentences(text):
        cuts = [0, *(match.start() for match in _CLAUSE_START.finditer(sentence)), len(sentence)]
        yield from (sentence[start:end] for start, end in pairwise(cuts))


def _without_lists(clause: str, mentions: list[Mention]) -> list[Mention]:
    """Return the mentions that are not in a list of alternatives; see the rule `one` above."""
    remaining = list(mentions)
    for run in _runs(clause, mentions):
        inside = [mention for piece in run for mention in piece]
        faulty = any(not mention.accepted for mention in inside)
        if faulty or (len(run) > 2 and any(not piece for piece in run)):
            remaining = [mention for mention in remaining if mention not in inside]
    return remaining


def _runs(clause: str, mentions: Sequence[Mention]) -> list[list[list[Mention]]]:
    """Return the lists of two or more items in a clause. Each item is represented by its mentions, if any."""
    runs: list[list[list[Mention]]] = []
    open_run = False
    for start, end in _pieces(clause):
        piece = [each for each in mentions if start <= each.start and each.end <= end]
        bare = _is_bare(clause[start:end])
        first = [each for each in piece[:1] if bare or each.start == start + _lead(clause[start:end])]
        last = [each for each in piece[-1:] if bare or not clause[each.end : end].strip(_PUNCTUATION)]
        run_items = {each.item for item in runs[-1] for each in item} if open_run else set[str]()
        repeats = not bare and any(each.item in run_items for each in first)
        if open_run and (bare or first) and not repeats:
            runs[-1].append(first)
            open_run = bare or first == last
        else:
            open_run = bool(bare or last)
            if open_run:
                runs.append([last])
    return [run for run in runs if len(run) > 1]


def _pieces(clause: str) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each piece of text between separators."""
    at = 0
    for match in _SEPARATOR.finditer(clause):
        yield at, match.start()
        at = match.end()
    yield at, len(clause)


def _is_bare(piece: str) -> bool:
    """Return whether `piece` is a bare list item: one or two words, not counting its article."""
    words = piece[_lead(piece) :].strip(_PUNCTUATION)
    return 1 <= len(words.split()) <= 2 and words not in _FILLERS


def _lead(piece: str) -> int:
    match = _ARTICLE.match(piece)
    return match.end() if match else 0


def _is_whole(text: str, mention: Mention) -> bool:
    return not (text[: mention.start] + text[mention.end :]).strip(_PUNCTUATION)


def _pattern(item: str) -> re.Pattern[str]:
    words = [
        re.sub(r"\\\((\w+)\\\)", r"(?:\1)?", re.escape(word))
        for word in re.split(r"[\s-]+", plain(item).strip())
    ]
    phrase = r"[\s-]+".join(words)
    return re.compile(rf"(?<!\w)(?<!\w['-]){phrase}(?!\w)(?!-\w)")
