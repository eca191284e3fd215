"""Graders: each extracts the answer from a text and judges it. A question names one of `GRADERS`.

Graders that may hang or crash run in other processes: `math` and `reasoning_gym` in `grading_processes`,
`code` in `sandbox`.
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
from evaluation.grading_mentions import mention_fault
from evaluation.grading_processes import math_verify_grade, reasoning_gym_score
from evaluation.questions import Grade, Question
from evaluation.sandbox import run_program

NO_ANSWER = "no answer was found in the text"
RIGHT = 0.99
"""Lowest reasoning-gym score that counts as right. Scores are floats. Partial credit does not count."""
CODE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Grader:
    """Grader of one form of answers.

    Args:
        extract: a function that returns the part of a text that counts as the answer, or None if there is
            none. Votes are counted over these parts.
    """

    extract: Callable[[str], str | None]
    judge: Callable[[Question, str], Awaitable[Grade]]


def compare(same: Callable[[str, str], bool]) -> Callable[[Question, str], Awaitable[Grade]]:
    """Return a judge that calls `same` with the answer and the expected answer, in this process."""

    async def judge(question: Question, answer: str) -> Grade:
        right = same(answer, question.expected)
        return Grade(right, answer, "" if right else "the answer differs from the expected answer")

    return judge


async def judge_recorded(question: Question, answer: str) -> Grade:
    """Accept the expected answer, and every answer whose recorded score counts as right."""
    right = answer == question.expected.strip() or answer in question.facts["right"]
    return Grade(
        right, answer, "" if right else "the answer is neither the expected answer nor recorded as right"
    )


async def judge_reasoning_gym(question: Question, answer: str) -> Grade:
    score, why = await reasoning_gym_score(question.family, answer, question.facts["entry"])
    right = score is not None and score >= RIGHT
    return Grade(right, answer, "" if right else why or f"the scorer returned {score:g}")


async def judge_mathematics(question: Question, answer: str) -> Grade:
    """Judge an answer with `math-verify`, which reads LaTeX and treats 1/2 and 0.5 as equal."""
    right, read, why = await math_verify_grade(question.expected, answer)
    return Grade(right, read, "" if right else why)


async def judge_code(question: Question, answer: str) -> Grade:
    """Judge a program by HumanEval's rule: it must run and pass its tests. See `sandbox` for limits."""
    name, prompt = question.facts["entry_point"], question.facts["prompt"]
    # The prompt goes first: it has the imports, and some models write only the function's body.
    program = f"{prompt}\n    pass\n\n{answer}" if f"def {name}" in answer else f"{prompt}{answer}"
    tests = f"{question.facts['test']}\n\ncheck({name})\n"
    verdict = await run_program(program, tests, CODE_TIMEOUT_S)
    return Grade(verdict.passed, answer, verdict.why)


async def judge_mentions(question: Question, answer: str) -> Grade:
    """Judge free text with `evaluation.grading_mentions`: it must mention an accepted answer and no refused one."""
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
    except ArithmeticError:  # not a number, or too large to divide
        return False


def _number(text: str) -> str | None:
    """Return the number in canonical form, so that 7.0 and 7 are the same vote."""
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
"""Graders by the name that questions use."""


async def grade(question: Question, answer: str) -> Grade:
    part = extract(question, answer)
    if part is None:
        return Grade(False, None, NO_ANSWER)
    return await GRADERS[question.grader].judge(question, part)


def extract(question: Question, answer: str) -> str | None:
    """Return the part of the text `answer` that counts as the answer, or None if there is none."""
    return GRADERS[question.grader].extract(answer)
