"""Quantities in ordinary words for the converter: compound amounts, rounding, statements before a question, and trips.

A question is reduced to its quantities and units. Every other word must be one of a few that do not change the meaning.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from serving.workers.programs.counts import amount_of
from serving.workers.programs.expressions import NUMBER, read_number
from serving.workers.programs.process import NotForProgram

_PARTS = {
    "half": Fraction(1, 2),
    "quarter": Fraction(1, 4),
    "three quarters": Fraction(3, 4),
    "third": Fraction(1, 3),
}
_PART = r"(?:(?:an? |one )?(?:half|quarter|third)|three quarters)"
_MIXED = rf"(?:{NUMBER} and {_PART}|\d{{1,4}} \d/\d|\d{{1,4}}[½¼¾]|{NUMBER}|(?:half|a quarter of|a third of|three quarters of) an?|an?)"
_PLAIN_WORDS = """
convert change express turn translate give show work out what what's whats is are was how many much long tall far heavy hot cold
big high warm there in to into as of the a an if i we you it its do does did make makes up equal equals when would will be have
has get me measured converted expressed exactly approximately roughly about altogether worth fit go come comes that this same
amount number value length weight height temperature distance time all contain contains
"""
_TRIP_WORDS = """
drive drives driving walk walks walking run runs running cycle cycles cycling ride rides riding travel travels travelling
traveling fly flies flew flying sail sails train car bus plane bike boat ship he she they we're i'm i've at speed average for
take takes us her them journey trip with no stops without stopping steady constant cover covers away my our goes moves every
each per from and then need needs one person someone going by on motorway lorry truck runner cyclist fast drove
"""
_FILLERS = frozenset(_PLAIN_WORDS.split())
_TRAVEL = _FILLERS | frozenset(_TRIP_WORDS.split())
_CHANGES = re.compile(
    r"\b(?:twice|half|double|triple|times|more|less|fewer|than|minus|plus|not|n't|each|every|per|both|another|between|below|above|by|rose|fell|rise|drop|difference|warmer|cooler|colder|under|over"
    r"|almost|nearly|and|or|to)\b|n't\b|%",
    re.IGNORECASE,
)
_ROUND = re.compile(
    r",? (?:rounded |round (?:it )?)?to (?:the nearest (?P<whole>whole |full )?(?P<to>[a-z]+)|(?P<places>\d|one|two|three) (?:decimal(?: place)?s?|dp))(?= |$)"
    r"|,? (?:rounded|as a whole number)$",
    re.IGNORECASE,
)
_ASIDES = re.compile(
    r" \((?:the |as a |in )?(?:weight|mass|unit|volume|liquid|length)(?:,? not (?:the )?(?:money|currency|weight))?(?: lol)?\)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Reading:
    """Quantities, units and other words of a question.

    Args:
        amounts: compound amounts, as numbers and names of units.
        targets: names of units without a number.
        frame: text with `§` for each amount and `@` for each unit.
        first_amount: first amount in the user's words.
        places: decimal places to which the result is rounded, or None.
    """

    amounts: tuple[tuple[tuple[Fraction, str], ...], ...]
    targets: tuple[str, ...]
    frame: str
    first_amount: str
    places: int | None
    system: str = ""


def mixed_number(text: str | None) -> Fraction:
    """Read a number such as `3 and a half`, `2 1/2` or `3½`. Nothing, or an article, is 1."""
    text = (text or "").casefold().strip()
    for sign, part in (("½", " 1/2"), ("¼", " 1/4"), ("¾", " 3/4")):
        text = text.replace(sign, part)
    text = re.sub(r"(?: of)? an?$", "", text)
    if fraction := re.fullmatch(r"(\d+) (\d)/(\d)", text):
        if fraction[3] == "0":
            raise NotForProgram("Division by zero is undefined.")
        return Fraction(int(fraction[1])) + Fraction(int(fraction[2]), int(fraction[3]))
    whole, _, part = text.rpartition(" and ")
    name = re.sub(r"^(?:an?|one) ", "", part or text)
    if name in _PARTS:
        return (read_number(whole) if whole else 0) + _PARTS[name]
    return amount_of(text)


class QuantityReader:
    """Reader of quantities with the units of `names`, a regular expression."""

    def __init__(self, names: str) -> None:
        names = f"(?:(?!in\\b)(?:{names})|in(?=,? (?:in|to|into|as|is)\\b|$))"
        self._one = rf"(?<![\w.,/])(?P<number>{_MIXED})(?:(?<=[\d½¼¾.])|[ -])(?P<unit>{names})(?P<half> and {_PART})?(?![\w/])"
        flags = re.IGNORECASE
        self._quantity = re.compile(self._one, flags)
        plain = re.sub(r"\?P<\w+>", "?:", self._one)
        self._run = re.compile(rf"{plain}(?:(?:,? and |, | ){plain.replace('an?|', '', 1)})*", flags)
        self._unit = re.compile(rf"(?<![\w'-])(?!in\b|a\b)(?:{names})(?![\w'-])", flags)

    def read(self, text: str) -> Reading:
        """Return the reading of a question. Raise NotForProgram if its context may change the meaning."""
        text = re.sub(
            r"(\d)\s?'\s?(\d{1,2}(?:\.\d)?)(?:\"|''|(?= )|$)", r"\1 feet \2 inches", _ASIDES.sub("", text)
        )
        text = re.sub(
            r"(\d) ?(?:ft|foot|feet) (\d{1,2})(?=,? (?:in|to|into|as|is)\b(?! (?:in|to|into|as|is)\b)|$)",
            r"\1 feet \2 inches",
            text,
            flags=re.IGNORECASE,
        )
        text = re.sub(r"(?<=\d)\s?(?:°|º|degrees?) ?([cf])\b", r" degrees \1", text, flags=re.IGNORECASE)
        *before, question = re.split(
            r"[.!?;]+ (?=[a-z])|, (?=(?:what|how|whats)\b)|,? so (?=how\b|what\b)", text, flags=re.IGNORECASE
        )
        places = None
        if rounding := _ROUND.search(question):
            to = (rounding["to"] or "number").casefold()
            rest = [
                each.casefold().rstrip("s")
                for each in self._unit.findall(self._run.sub("§", question[: rounding.start()]))
            ]
            degrees = to.startswith("degree") and rest[-1:] in (["celsiu"], ["fahrenheit"], ["c"], ["f"])
            if not (to.rstrip("s") in rest or degrees or to in ("number", "integer", "whole", "one")):
                raise NotForProgram(
                    "The question asks for a kind of rounding that the program does not know."
                )
            places = int(read_number(rounding["places"])) if rounding["places"] else 0
            question = question[: rounding.start()] + question[rounding.end() :]
        question = self._with_context([each for each in before if each.strip()], question)
        systems = set(re.findall(r"\b(us|u\.s\.|american|imperial|british|uk)(?= )", question, re.IGNORECASE))
        question = re.sub(
            r"\b(?:us|u\.s\.|american|imperial|british|uk) (?=[a-z])", "", question, flags=re.IGNORECASE
        )
        amounts = tuple(
            tuple(
                (
                    mixed_number(each["number"]) + mixed_number(each["half"][5:] if each["half"] else "0"),
                    each["unit"],
                )
                for each in self._quantity.finditer(run[0])
            )
            for run in self._run.finditer(question)
        )
        frame = self._run.sub("§", question)
        targets = tuple(self._unit.findall(frame))
        system = (
            {"us": "US", "u.s.": "US", "american": "US"}.get(next(iter(systems)).casefold(), "imperial")
            if systems
            else ""
        )
        return Reading(
            amounts,
            targets,
            self._unit.sub("@", frame).strip(),
            first[0] if (first := self._run.search(question)) else "",
            places,
            system,
        )

    def _with_context(self, before: list[str], question: str) -> str:
        """Return the question with the quantity that it refers to. Statements without a quantity may name its unit only."""
        if not before:
            return question
        context = " ; ".join(before)
        runs = list(self._run.finditer(context))
        runs = [run for run in runs if not re.match(r"an?\b", run[0], re.IGNORECASE)]
        rest = self._run.sub(" ", context)
        if not runs and not re.search(rf"\d|\b(?:{NUMBER})\b", context):
            named = {each.casefold() for each in self._unit.findall(context)}
            if (
                named
                and named <= {each.casefold() for each in self._unit.findall(question)}
                and not _CHANGES.search(context)
            ):
                return question
        if len(runs) == 2 and is_trip(self._run.sub("§", f"{context} {self._unit.sub('@', question)}")):
            return f"{context} {question}"
        refers = re.search(r"\b(?:that|it|this)\b", question, re.IGNORECASE)
        if len(runs) != 1 or _CHANGES.search(rest) or re.search(r"\d", rest) or not refers:
            raise NotForProgram("The program does not understand the sentences before the question.")
        return question[: refers.start()] + runs[0][0] + question[refers.end() :]


def is_only(frame: str, words: frozenset[str] = _FILLERS) -> bool:
    """Return whether a frame has only words that do not change the meaning of a question about quantities."""
    return set(re.findall(r"[^\s,?.:;§@]+", frame.casefold())) <= words


def is_trip(frame: str) -> bool:
    return is_only(frame, _TRAVEL)


def round_to(value: Fraction, places: int) -> Fraction:
    """Round half away from zero."""
    scale = Fraction(10) ** places
    whole = int(abs(value) * scale + Fraction(1, 2))
    return Fraction(whole if value >= 0 else -whole) / scale
