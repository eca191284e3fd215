"""Missing words of proverbs, idioms, comparisons and rhymes, for the dictionary."""

import re
from functools import cache
from pathlib import Path

from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, pattern

FILE = Path(__file__).with_name("sayings.txt")
MOST_MISSING = 8
_GAP = r"(?:_{2,}|\.{3,}|…|\[[a-z ]*\]|\bblank\b)"


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z]+(?:'[a-z]+)?", text.casefold().replace("-", " ").replace("o' ", "o ")))


@cache
def _request_words() -> frozenset[str]:
    """Return the words that may stand around the words of a saying."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if line.startswith("- ") for word in line[2:].split())


@cache
def _sayings() -> dict[tuple[str, ...], str]:
    """Return the sayings by their words."""
    lines = (
        line for line in FILE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")
    )
    return {_words(line): line for line in lines}


def _complete(match: re.Match[str]) -> ExactAnswer:
    text = match[0]
    quoted = re.fullmatch(r"(?P<lead>[^\"]*)\"(?P<part>[^\"]+)\"(?P<end>[^\"]*)", text)
    parts = [(f"{quoted['lead']} {quoted['end']}", quoted["part"])] if quoted else []
    head, colon, tail = text.rpartition(":")
    parts += [(head, tail)] if colon else []
    lead = re.match(
        rf"(?:{'|'.join(sorted(_request_words(), key=len, reverse=True))})(?![\w'])[\s,]*",
        text,
        re.IGNORECASE,
    )
    parts += [("", text)]
    while not quoted and not colon and lead:
        parts.append((text[: lead.end()], text[lead.end() :]))
        lead = re.compile(rf"(?:{'|'.join(_request_words())})(?![\w'])[\s,]*", re.IGNORECASE).match(
            text, lead.end()
        )
    for request, part in parts:
        words_of_request = _words(request)
        if set(words_of_request) <= _request_words() and (answer := _answer(words_of_request, part)):
            return answer
    raise NotForProgram("The dictionary does not know this saying.")


def _answer(words_of_request: tuple[str, ...], part: str) -> ExactAnswer | None:
    """Return the missing words of `part`, which has a gap or is the beginning of a saying."""
    gaps = re.split(_GAP, part)
    kinds = {"proverb", "saying", "phrase", "idiom", "simile", "line", "rhyme", "song", "quote"}
    asks = {
        "finish", "finishes", "complete", "completes", "continue", "missing", "end", "ends", "next", "fill", "rest",
        "last", "go", "goes",
    }  # fmt: skip
    if len(gaps) > 2 or (len(gaps) == 1 and not asks & set(words_of_request)):
        return None
    before, after = _words(gaps[0]), _words(gaps[1]) if len(gaps) == 2 else ()
    if len(before) + len(after) < 2:
        return None
    for words, line in _sayings().items():
        n_missing = len(words) - len(before) - len(after)
        fits = words[: len(before)] == before and (not after or words[-len(after) :] == after)
        most = 1 if "__" in part or (len(before) < 4 and not kinds & set(words_of_request)) else MOST_MISSING
        if fits and 1 <= n_missing <= most:
            missing = " ".join(words[len(before) : len(before) + n_missing])
            what = "missing word is" if n_missing == 1 else "missing words are"
            return ExactAnswer(f'The {what} "{missing}". The whole saying: "{line}."', missing)
    return None


SAYINGS: tuple[Rule, ...] = (
    (
        pattern(r".*(?:__|\bas .* as|\.\.\.|…|finish|complete|continue|missing|blank|proverb|saying|end).*"),
        _complete,
    ),
)
