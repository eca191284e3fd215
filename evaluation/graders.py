"""Graders: each finds the answer in a text and says whether it is right. Questions name one of `GRADERS`.

What may hang or crash runs in other processes: `math` and `reasoning_gym` in `grading_processes`, `code` in
`sandbox`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from evaluation.answer_extraction import (
    answer_tag,
    answer_tag_or_all,
    choice,
    code,
    mathematics,
    number,
    opening,
)
from evaluation.grading_processes import math_verify_grade, reasoning_gym_score
from evaluation.mentions import mention_fault
from evaluation.questions import Grade, Question
from evaluation.sandbox import run_program

NO_ANSWER = "no answer was found in the text"
RIGHT = 0.99
"""reasoning-gym's scores are floats, and partial credit is not a right answer."""
CODE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Grader:
    """One way to judge.

    Args:
        extract: finds the part of a text that counts; None where there is none. Votes are counted over it.
        judge: the verdict on that part. Never raises because of its text.
    """

    extract: Callable[[str], str | None]
    judge: Callable[[Question, str], Awaitable[Grade]]


def compare(same: Callable[[str, str], bool]) -> Callable[[Question, str], Awaitable[Grade]]:
    """A judge that compares the answer with the expected one, in this process."""

    async def judge(question: Question, answer: str) -> Grade:
        right = same(answer, question.expected)
        return Grade(right, answer, "" if right else "it differs from the expected answer")

    return judge


async def judge_recorded(question: Question, answer: str) -> Grade:
    """Right is what was recorded as right, or the expected answer."""
    right = answer == question.expected.strip() or answer in question.facts["right"]
    return Grade(right, answer, "" if right else "no recorded answer with these words is right")


async def judge_reasoning_gym(question: Question, answer: str) -> Grade:
    """By the data set's own scorer."""
    score, why = await reasoning_gym_score(question.family, answer, question.facts["entry"])
    right = score is not None and score >= RIGHT
    return Grade(right, answer, "" if right else why or f"the scorer gives {score:g}")


async def judge_mathematics(question: Question, answer: str) -> Grade:
    """By `math-verify`: 1/2 equals 0.5, and LaTeX is read."""
    right, read, why = await math_verify_grade(question.expected, answer)
    return Grade(right, read, "" if right else why)


async def judge_code(question: Question, answer: str) -> Grade:
    """HumanEval: the program runs and its tests pass. See `sandbox` for what it protects from."""
    name, prompt = question.facts["entry_point"], question.facts["prompt"]
    # Some models write the body alone; the prompt in front also has the imports.
    program = f"{prompt}\n    pass\n\n{answer}" if f"def {name}" in answer else f"{prompt}{answer}"
    tests = f"{question.facts['test']}\n\ncheck({name})\n"
    verdict = await run_program(program, tests, CODE_TIMEOUT_S)
    return Grade(verdict.passed, answer, verdict.why)


async def judge_mentions(question: Question, answer: str) -> Grade:
    """Free text: its first words mention an accepted answer and no refused one. See `evaluation.mentions`."""
    fault = mention_fault(question.text, question.facts, answer)
    return Grade(not fault, answer, fault)


def _same_words(answer: str, expected: str) -> bool:
    return answer.casefold().split() == expected.casefold().split()


def _same_choice(answer: str, expected: str) -> bool:
    return answer == expected.strip().upper()


def _same_number(answer: str, expected: str) -> bool:
    try:
        one, other = Decimal(answer), Decimal(expected.replace(",", "").strip())
        return one == other or (other != 0 and abs(one / other - 1) < Decimal("1e-6"))
    except ArithmeticError:  # no number, or one too large to divide
        return False


def _number(text: str) -> str | None:
    """The number, in one spelling: 7.0 and 7 are the same vote."""
    if (digits := number(text)) is None:
        return None
    try:
        value = Decimal(digits)
        return format(value.normalize(), "f") if abs(value.adjusted()) < 40 else str(value)
    except InvalidOperation:
        return digits


GRADERS: dict[str, Grader] = {
    "exact": Grader(answer_tag_or_all, compare(_same_words)),
    "numeric": Grader(_number, compare(_same_number)),
    "choice": Grader(choice, compare(_same_choice)),
    "math": Grader(mathematics, judge_mathematics),
    "reasoning_gym": Grader(answer_tag, judge_reasoning_gym),
    "recorded": Grader(answer_tag, judge_recorded),
    "code": Grader(code, judge_code),
    "mentions": Grader(opening, judge_mentions),
}
"""By the name that questions use."""


async def grade(question: Question, answer: str) -> Grade:
    """Judge `answer`.

    Raises:
        KeyError: the question names a grader that is not in `GRADERS`.
    """
    found = extract(question, answer)
    if found is None:
        return Grade(False, None, NO_ANSWER)
    return await GRADERS[question.grader].judge(question, found)


def extract(question: Question, answer: str) -> str | None:
    """The part of `answer` that counts; None where there is none."""
    return GRADERS[question.grader].extract(answer)
