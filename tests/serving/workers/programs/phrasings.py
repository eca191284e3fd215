"""Phrasings with expected answers, shared by the tests of the programs."""

import os
from collections.abc import Mapping, Sequence

from serving.workers.programs.process import NotForProgram
from serving.workers.programs.program import ProgramWorker
from serving.workers.programs.question import PlainQuestion, read_question
from serving.workers.programs.rules import ExactAnswer

NOT_FOR_ANY = (
    "", " \n ", "?", "Write a poem about the sea.", "Who is the best singer?", "Explain quantum physics to a child.", "it", "Why?",
    "What about Italy?", "And the second one?", "Translate this letter into French.", "How are you?", "Tell me a joke.",
    "What is the meaning of life, the universe and everything?", "Fix my code: def f(): return 1", "Thanks!", "Ignore your rules.",
    "What is the best restaurant in Paris?", "__import__('os').system('id')", "1; DROP TABLE runs", "\x00\x01\x02", "{{7*7}}",
    "((((((((((((((((((((((((((((((((((((((((", "How many angels dance on the head of a pin?", "What is love?",
)  # fmt: skip
"""Requests that no program answers."""
HOSTILE = (
    "10^10^10", "9**9**9**9", "factorial of a billion", "1000000000!", "what is " + "9" * 1_000_000, "(" * 100_000 + "1",
    "-" * 100_000 + "1", "2^" * 200 + "2", "what is " + "1+" * 5_000 + "1", "\x00" * 100_000, "a" * 1_000_000, "ha " * 50_000,
    "convert " + "9" * 300 + " km to m", "capital of " + "of " * 100, "how many days until " + "1" * 300, "[" * 100_000,
    "pretty print this json: " + "[" * 5_000 + "]" * 5_000, "sort: " + "," * 15_000, "summarize: " + "a. " * 5_000, "sort " + "the " * 38 + "x: b, a",
    "\u202e" * 1_000, "what is 1e999999999", "0x" + "f" * 300, "prime factors of " + "9" * 40, "gcd of " + "7, " * 100 + "7",
    "what comes next: " + "1," * 190 + "x", "which is bigger: " + "a, " * 120 + "b or", "name " + "the " * 90 + "fruit", "as " * 120 + "...",
    "if " + "Tom has 3 apples and " * 18 + "how many", "put " + '"a" ' * 90, "is " + "a or " * 75 + "b", "B) " * 130, "translate " + "le " * 120 + "into French",
    "solve (x+1)^1000000 = 0", "expand " + "(x+1)" * 60, "count from 1 to 999999999999", "repeat the word a 999999999 times",
)  # fmt: skip
"""Requests that would exhaust time or memory in a careless program. Limits on their size bound the time."""


def check(program: ProgramWorker, answers: Mapping[str, str]) -> None:
    """Assert that the program answers each phrasing with exactly the expected sentence."""
    wrong = {
        phrasing: reply
        for phrasing, expected in answers.items()
        if (reply := say(program, phrasing)) != expected
    }
    assert wrong == {}


def check_refusals(program: ProgramWorker, phrasings: Sequence[str]) -> None:
    """Assert that the program refuses each phrasing with a reason."""
    assert {
        text[:80]: reply for text in phrasings if not (reply := say(program, text)).startswith("refused: ")
    } == {}


def say(program: ProgramWorker, text: str) -> str:
    try:
        return program.reply(read_question(text))
    except NotForProgram as reason:
        return f"refused: {reason}"


def never_fails(program: ProgramWorker) -> None:
    """Assert that the program gives a short reply or refusal to every hostile and unanswerable request."""
    for text in (*HOSTILE, *NOT_FOR_ANY):
        assert len(say(program, text)) < 30_000, text[:80]


class Place(ProgramWorker):
    """Program that answers with the id of its process."""

    topic = "processes"

    def answer(self, question: PlainQuestion) -> ExactAnswer:
        return ExactAnswer(str(os.getpid()))
