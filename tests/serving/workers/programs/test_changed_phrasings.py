"""Phrasings of other programs, and phrasings with words dropped, doubled or swapped. They must never break a program."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.workers.programs.program import ProgramWorker
from tests.serving.workers.programs.phrasings import say
from tests.serving.workers.programs.test_almanac import ALMANAC
from tests.serving.workers.programs.test_almanac import ANSWERS as FACTS
from tests.serving.workers.programs.test_calculator import ANSWERS as SUMS
from tests.serving.workers.programs.test_calculator import CALCULATOR
from tests.serving.workers.programs.test_countries import ANSWERS as COUNTRIES
from tests.serving.workers.programs.test_countries import ATLAS
from tests.serving.workers.programs.test_dates import ANSWERS as DATES
from tests.serving.workers.programs.test_dates import CALENDAR
from tests.serving.workers.programs.test_text_tools import ANSWERS as TEXTS
from tests.serving.workers.programs.test_text_tools import TOOLS
from tests.serving.workers.programs.test_units import ANSWERS as UNITS
from tests.serving.workers.programs.test_units import CONVERTER
from tests.serving.workers.programs.test_words import ANSWERS as WORDS
from tests.serving.workers.programs.test_words import DICTIONARY

PROGRAMS = (CALCULATOR, CONVERTER, CALENDAR, ATLAS, DICTIONARY, TOOLS, ALMANAC)
OWN = dict(zip(PROGRAMS, (SUMS, UNITS, DATES, COUNTRIES, WORDS, TEXTS, FACTS), strict=True))
SHARED = (
    "How many months are there in a year?", "how many months are there in a year", "how many days in a week", "count the words in",
    "how many days in a year", "how many quarters make a whole", "how many minutes in a quarter of an hour", "hello world", "letters are in",
    "What comes next: 1, 4", "What is the next letter", "What is the missing number", "Which is longer, a minute", "What are the months of the year",
)  # fmt: skip
"""Parts of phrasings that two programs answer in the same way."""
OTHER_WORDS = [
    "the",
    "of",
    "a",
    "5",
    "0",
    "-1",
    "France",
    "km",
    "euros",
    "and",
    "or",
    "is",
    '"cat"',
    "?",
    ",",
    ":",
    "not",
    "half an",
    "1.5",
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_phrasing_of_another_program_is_rejected(program: ProgramWorker):
    others = [text for each, answers in OWN.items() if each is not program for text in answers]
    answered = {text: reply for text in others if not (reply := say(program, text)).startswith("refused: ")}
    assert {text: reply for text, reply in answered.items() if not any(part in text for part in SHARED)} == {}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
@given(st.data())
def test_a_changed_phrasing_is_answered_or_rejected(program: ProgramWorker, data: st.DataObject):
    text = data.draw(st.sampled_from(sorted(OWN[program])))
    luck = random.Random(data.draw(st.integers(0, 2**32)))
    words = text.split(" ")
    for _ in range(luck.randrange(1, 4)):
        at = luck.randrange(len(words))
        words[at : at + luck.randrange(2)] = luck.choice(
            [[], [words[at], words[at]], [luck.choice(OTHER_WORDS)], [luck.choice(words)]]
        )
        words = words or [""]
    assert say(program, " ".join(words))
