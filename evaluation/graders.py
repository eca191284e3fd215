"""Graders: each finds the answer in a text and says whether it is right. Questions name one of `GRADERS`.

What may hang or crash runs in other processes: `math` and `reasoning_gym` in `grading_processes`, `code` in
`sandbox`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Protocol

from evaluation import answer_extraction
from evaluation.grading_processes import math_verify_grade, reasoning_gym_score
from evaluation.questions import Grade, Question
from evaluation.sandbox import Verdict, run_program

NO_ANSWER = "no answer was found in the text"
RIGHT = 0.99
"""reasoning-gym's scores are floats, and partial credit is not a right answer."""


class Grader(Protocol):
    """One way to judge."""

    def extract(self, question: Question, answer: str) -> str | None:
        """The part of `answer` that counts; None where there is none. Votes are counted over it."""
        ...

    async def grade(self, question: Question, answer: str) -> Grade:
        """Judge `answer`. Never raises because of its text."""
        ...


@dataclass(frozen=True, slots=True)
class ComparisonGrader:
    """Compares the extracted answer with the expected one, in this process."""

    find: Callable[[str], str | None]
    same: Callable[[str, str], bool]
    normal: Callable[[str], str] = str.strip

    def extract(self, question: Question, answer: str) -> str | None:
        """See `Grader`."""
        found = self.find(answer)
        return None if found is None else self.normal(found)

    async def grade(self, question: Question, answer: str) -> Grade:
        """See `Grader`."""
        found = self.extract(question, answer)
        if found is None:
            return Grade(False, None, NO_ANSWER)
        right = self.same(found, question.expected)
        return Grade(right, found, "" if right else "it differs from the expected answer")


@dataclass(frozen=True, slots=True)
class RecordedGrader:
    """For a recorded pool: right is what was recorded as right, or the expected answer."""

    def extract(self, question: Question, answer: str) -> str | None:
        """See `Grader`."""
        return answer_extraction.answer_tag(answer)

    async def grade(self, question: Question, answer: str) -> Grade:
        """See `Grader`."""
        found = self.extract(question, answer)
        if found is None:
            return Grade(False, None, NO_ANSWER)
        right = found == question.expected.strip() or found in question.facts["right"]
        return Grade(right, found, "" if right else "no recorded answer with these words is right")


@dataclass(frozen=True, slots=True)
class ReasoningGymGrader:
    """The data set's own scorer, applied to the text between answer tags alone."""

    def extract(self, question: Question, answer: str) -> str | None:
        """See `Grader`."""
        return answer_extraction.answer_tag(answer)

    async def grade(self, question: Question, answer: str) -> Grade:
        """See `Grader`."""
        found = self.extract(question, answer)
        if found is None:
            return Grade(False, None, NO_ANSWER)
        score, why = await reasoning_gym_score(question.family, found, question.facts["entry"])
        right = score is not None and score >= RIGHT
        return Grade(right, found, "" if right else why or f"the scorer gives {score:g}")


@dataclass(frozen=True, slots=True)
class MathGrader:
    """`math-verify`: 1/2 equals 0.5, and LaTeX is read."""

    def extract(self, question: Question, answer: str) -> str | None:
        """See `Grader`."""
        return answer_extraction.mathematics(answer)

    async def grade(self, question: Question, answer: str) -> Grade:
        """See `Grader`."""
        found = self.extract(question, answer)
        if found is None:
            return Grade(False, None, NO_ANSWER)
        right, read, why = await math_verify_grade(question.expected, found)
        return Grade(right, read, "" if right else why)


@dataclass(frozen=True, slots=True)
class CodeGrader:
    """HumanEval: the program runs and its tests pass. See `sandbox` for what it protects from."""

    timeout_s: float = 10.0

    def extract(self, question: Question, answer: str) -> str | None:
        """See `Grader`."""
        return answer_extraction.code(answer)

    async def grade(self, question: Question, answer: str) -> Grade:
        """See `Grader`."""
        found = self.extract(question, answer)
        if found is None:
            return Grade(False, None, NO_ANSWER)
        name, prompt = question.facts["entry_point"], question.facts["prompt"]
        # Some models write the body alone; the prompt in front also has the imports.
        program = f"{prompt}\n    pass\n\n{found}" if f"def {name}" in found else f"{prompt}{found}"
        tests = f"{question.facts['test']}\n\ncheck({name})\n"
        verdict: Verdict = await run_program(program, tests, self.timeout_s)
        return Grade(verdict.passed, found, verdict.why)


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _same_number(found: str, expected: str) -> bool:
    try:
        one, other = Decimal(found), Decimal(expected.replace(",", "").strip())
        return one == other or (other != 0 and abs(one / other - 1) < Decimal("1e-6"))
    except ArithmeticError:  # no number, or one too large to divide
        return False


def _normal_number(found: str) -> str:
    try:
        number = Decimal(found)
        return format(number.normalize(), "f") if abs(number.adjusted()) < 40 else str(number)
    except InvalidOperation:
        return found


GRADERS: dict[str, Grader] = {
    "exact": ComparisonGrader(
        answer_extraction.answer_tag_or_all, lambda found, expected: _plain(found) == _plain(expected)
    ),
    "numeric": ComparisonGrader(answer_extraction.number, _same_number, _normal_number),
    "choice": ComparisonGrader(
        answer_extraction.choice, lambda found, expected: found == expected.strip().upper()
    ),
    "math": MathGrader(),
    "reasoning_gym": ReasoningGymGrader(),
    "recorded": RecordedGrader(),
    "code": CodeGrader(),
}
"""By the name that questions use."""


async def grade(question: Question, answer: str) -> Grade:
    """Judge `answer`.

    Raises:
        KeyError: the question names a grader that is not in `GRADERS`.
    """
    return await GRADERS[question.grader].grade(question, answer)


def extract(question: Question, answer: str) -> str | None:
    """The part of `answer` that counts; None where there is none."""
    return GRADERS[question.grader].extract(question, answer)
