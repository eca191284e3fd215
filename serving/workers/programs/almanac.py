"""Almanac: everyday general knowledge, groups of things, comparisons and chemical elements.

The facts are in `almanac.txt`. The almanac knows nothing about current events, and nothing that changes with the year.
"""

import re
from collections.abc import Iterator
from functools import cache

from serving.workers.programs.elements import ELEMENTS
from serving.workers.programs.expressions import NUMBER, read_number
from serving.workers.programs.facts import Fact, almanac
from serving.workers.programs.groups import NAMES, memberships
from serving.workers.programs.names import NAMES_OF
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.program import ProgramWorker
from serving.workers.programs.question import PlainQuestion
from serving.workers.programs.rules import ExactAnswer, Rule, answer_by, pattern
from serving.workers.programs.scales import SCALES
from serving.workers.programs.selection import SELECTIONS, items_of
from serving.workers.programs.sequences import analogy

_PEOPLE = (
    "person man woman scientist writer author poet artist painter composer musician inventor explorer president king"
    " queen physicist astronaut detective playwright philosopher leader emperor boy girl character sculptor singer"
    " job profession worker people"
)
_OPEN = re.compile(
    r"\b(?:(?P<count>how many|what number of)|(?P<how>how (?:long|far|tall|high|hot|fast|much|big|deep|old|often|cold))"
    r"|(?P<who>who|whose|whom)\b(?!se)|(?P<where>where)|(?P<when>when|(?:what|which) (?:year|date)\b(?! is))"
    r"|(?P<what>what|which))\b",
    re.IGNORECASE,
)
_CLOSED = re.compile(r"(?:is|are|was|were|do|does|did|can|could|has|have|will)\b", re.IGNORECASE)
_LEAD = re.compile(r"is it true(?: that|:)?\s*", re.IGNORECASE)
_CHOICE = re.compile(r"(?P<head>[^:?]+?)[,:?] ?(?P<items>(?:[^,:?]+,)*[^,:?]+?,? or [^,:?]+)", re.IGNORECASE)
_BLANK = re.compile(
    r"(?:(?:fill in|complete|finish)(?: the)? ?(?:blank|gap|missing word|sentence|phrase)?s?(?: with one word)?[:.]?\s*)?"
    r"[\"']?(?P<head>[^\"']+?)\s*(?:_{2,}|\.\.\.|…)[\"']?",
    re.IGNORECASE,
)


def _kind(text: str) -> tuple[str, str]:
    """Return the type of an open question, and its text without the interrogative."""
    text = (
        re.sub(r"^(?:the )?(?=\w+est \w|most \w)", "what is the ", text, flags=re.IGNORECASE)
        if not _OPEN.search(text)
        else text
    )
    text = re.sub(r"^name (?:me )?(?=the\b|a\b)", "what is ", text, flags=re.IGNORECASE)
    interrogative = _OPEN.search(text)
    if interrogative is None or not interrogative.lastgroup:
        raise NotForProgram("The question does not ask for a fact.")
    kind = interrogative.lastgroup
    adjective = interrogative[0][3:] if kind == "how" else ""
    return kind, f"{text[: interrogative.start()]} {adjective} {text[interrogative.end() :]}"


def _open_facts(text: str) -> list[Fact]:
    """Return the facts that answer an open question, the one with the most words in common first."""
    kind, rest = _kind(text)
    words = almanac().words(rest)
    people = frozenset(almanac().words(_PEOPLE)) if kind == "what" else frozenset[str]()
    is_person = people & set(words[:3]) or re.search(
        r"\b(?:someone|somebody|person|man|woman) (?:who|that)\b", text
    )
    kinds = {kind, "who"} if kind == "what" and is_person else {kind}
    facts = [
        fact
        for fact in almanac().candidates(words)
        if kinds & set(fact.kinds)
        and fact.fits(words, is_open=True, extra=people if "who" in fact.kinds else frozenset())
    ]
    return sorted(facts, key=lambda fact: -len(fact.required) - len(fact.categories))


def _answer_open(text: str) -> ExactAnswer:
    facts = _open_facts(text)
    if not facts:
        raise NotForProgram("The almanac has no fact with exactly these words.")
    size = len(facts[0].required) + len(facts[0].categories)
    best = [fact for fact in facts if len(fact.required) + len(fact.categories) == size]
    if len({tuple(map(_plain_item, fact.values[:1])) or fact.sentence for fact in best}) > 1:
        raise NotForProgram("Several facts of the almanac fit the question.")
    return ExactAnswer(facts[0].sentence, facts[0].values[0] if facts[0].values else "")


@cache
def _forms(value: str) -> tuple[frozenset[str], ...]:
    """Return the significant words of a value, and of a person's family name."""
    words = almanac().words(value)
    is_name = len(words) > 1 and all(part[0].isupper() for part in value.split() if part != "and")
    return (frozenset(words), frozenset(words[-1:])) if is_name else (frozenset(words),)


@cache
def _values_of(table: int) -> frozenset[frozenset[str]]:
    return frozenset(
        form
        for fact in almanac().facts
        if fact.table == table
        for value in fact.values
        for form in _forms(value)
    )


def _truth(text: str) -> tuple[bool, str] | None:
    """Return whether a statement is true, and a sentence that says why, or None if this is unknown."""
    words = almanac().words(text)
    verdicts = dict.fromkeys(_verdicts(words))
    if len({is_so for is_so, _ in verdicts}) != 1:
        return None
    return next(iter(verdicts))


def _verdicts(words: tuple[str, ...]) -> Iterator[tuple[bool, str]]:
    has = frozenset(words)
    for fact in almanac().candidates(words):
        if fact.kinds in (("yes",), ("no",)):
            if fact.fits(words, is_open=True):
                yield fact.kinds == ("yes",), fact.sentence
            continue
        forms = [form for value in fact.values for form in _forms(value)]
        if any(form and form <= has and fact.fits(words, is_open=False, extra=form) for form in forms):
            yield True, fact.sentence
        elif fact.table or any(word.endswith("est") for each in fact.required for word in each & has):
            rest = has - fact.optional.union(*fact.required, *fact.categories)
            values = _values_of(fact.table) if fact.table else _superlatives()
            is_other = rest in values and rest not in forms and rest not in fact.unclear
            if is_other and fact.fits(words, is_open=False, extra=rest):
                yield False, fact.sentence
    yield from memberships(words)


@cache
def _superlatives() -> frozenset[frozenset[str]]:
    """Return the values of the facts about a thing that is the most of its kind."""
    return frozenset(
        form
        for fact in almanac().facts
        if any(word.endswith("est") for each in fact.required for word in each)
        for value in fact.values
        for form in _forms(value)
    )


def _parts_of_several(match: re.Match[str]) -> ExactAnswer:
    """Answer how many parts several things have together, from the number of one thing."""
    one = _answer_open(f"how many {match['part']} does a {match['thing']} have")
    if not one.value.isdigit():
        raise NotForProgram("The almanac has no such number.")
    value = f"{int(one.value) * int(read_number(match['n'])):,}"
    return ExactAnswer(f"{one.sentence.rstrip('.')}, so {match['n']} {match['thing']} have {value}.", value)


def _say_truth(text: str) -> ExactAnswer:
    truth = _truth(text)
    if truth is None:
        raise NotForProgram("The almanac does not know whether this is true.")
    word = "Yes" if truth[0] else "No"
    return ExactAnswer(f"{word}. {truth[1]}", word)


def _alternatives(text: str) -> list[tuple[str, str]]:
    """Return the two statements of a question such as "Is the Sun a star or a planet?", with their alternatives."""
    first, _, second = text.partition(" or ")
    n_words, before = len(second.split()), first.split()
    if not second or n_words > 5 or " or " in second or len(before) <= n_words:
        raise NotForProgram("The question does not offer two alternatives.")
    return [(first, " ".join(before[-n_words:])), (" ".join([*before[:-n_words], second]), second)]


def _plain_item(text: str) -> str:
    return re.sub(r"^(?:an?|the|in|on|by|with|in the) ", "", text.strip(" \"'?."), flags=re.IGNORECASE)


def _choose_closed(text: str) -> ExactAnswer:
    truths = [(option, _truth(statement)) for statement, option in _alternatives(text)]
    right = [(option, truth[1]) for option, truth in truths if truth and truth[0]]
    if len(right) != 1:
        raise NotForProgram("The almanac does not know which of the alternatives is true.")
    option, sentence = _plain_item(right[0][0]), right[0][1]
    says = set(almanac().words(option)) <= set(almanac().words(sentence))
    return ExactAnswer(sentence if says else f"{option[0].upper()}{option[1:]}. {sentence}", option)


def _choose_open(match: re.Match[str]) -> ExactAnswer:
    """Answer an open question that offers alternatives."""
    options = items_of(match["items"])
    stems = {option: frozenset(almanac().words(option)) for option in options}
    try:
        values = {
            form for fact in _open_facts(match["head"]) for value in fact.values for form in _forms(value)
        }
    except NotForProgram:
        values = set[frozenset[str]]()
    right = [option for option in options if stems[option] in values]
    if not right:
        rest = " ".join(_kind(match["head"])[1].split()[:])
        truths = {option: _option_truth(option, rest) for option in options}
        right = [option for option, is_so in truths.items() if is_so]
    if len(right) != 1:
        raise NotForProgram("The almanac does not know which of the alternatives is right.")
    name = _plain_item(right[0])
    return ExactAnswer(f"The answer is {name}.", name)


def _option_truth(option: str, rest: str) -> bool:
    """Return whether `rest` is true of `option`, with and without the noun that `rest` begins with."""
    verdicts = [_truth(f"{option} {text}") for text in (rest, " ".join(rest.split()[1:]))]
    return any(verdict is not None and verdict[0] for verdict in verdicts)


def _same_table(one: str, other: str, third: str) -> str | None:
    """Return the value of `third` in the table in which `other` is the value of `one`."""
    content = almanac()
    a, c = set(content.words(one)), set(content.words(third))
    for fact in content.facts:
        needed = frozenset[str]().union(*fact.required)
        if (
            fact.table
            and a
            and a <= needed
            and frozenset(content.words(other)) in {f for v in fact.values for f in _forms(v)}
        ):
            for each in content.facts:
                if (
                    each.table == fact.table
                    and frozenset[str]().union(*each.required) == needed - a | c
                    and each.values
                ):
                    return each.values[0]
    return None


def _fill_blank(match: re.Match[str]) -> ExactAnswer:
    head = almanac().words(match["head"])
    answers = {
        (fact.sentence, value)
        for fact in almanac().candidates(head)
        for value in fact.values[:1]
        if set(almanac().words(fact.sentence)) - set(almanac().words(value)) == set(head)
        and fact.sentence.rstrip(".").endswith(value)
    }
    if len(answers) != 1:
        raise NotForProgram("The almanac does not know what is missing.")
    sentence, value = answers.pop()
    return ExactAnswer(sentence, value)


_RULES: tuple[Rule, ...] = (
    *ELEMENTS,
    *SELECTIONS,
    *SCALES,
    analogy((_same_table,)),
    (_BLANK, _fill_blank),
    *NAMES,
    (pattern(rf"how many (?P<part>[a-z]+) (?:do|are on|are there on|have|does) (?P<n>(?!one\b|an?\b){NUMBER}) (?P<thing>[a-z]+)(?: have)?(?: together| in total| altogether| in all)?"), _parts_of_several),
    (_CHOICE, _choose_open),
    (pattern(r"(?!name\b).*\b(?:what|which|who|whose|whom|where|when|how)\b.*|name (?:me )?the .+"), lambda match: _answer_open(match[0])),
    *NAMES_OF,
)  # fmt: skip


class Almanac(ProgramWorker):
    """Program that answers questions about general knowledge."""

    topic = "general knowledge: colours, animals, the body, places, planets, inventors, authors, groups and comparisons"
    ignores_pronouns = True

    def answer(self, question: PlainQuestion) -> ExactAnswer:
        text = question.text
        if not _CLOSED.match(text):
            return answer_by(_RULES, question)
        statement = _LEAD.sub("", text)
        for reply in (lambda: answer_by(SCALES, question), lambda: _say_truth(statement)):
            try:
                return reply()
            except NotForProgram:
                continue
        return _choose_closed(text)
