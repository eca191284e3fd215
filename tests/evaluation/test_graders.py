import asyncio
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation import answer_extraction
from evaluation.graders import GRADERS, extract, grade
from evaluation.grading_processes import GradingPool
from evaluation.questions import Question
from evaluation.sandbox import run_program


def make_question(grader: str, expected: str, **facts: Any) -> Question:
    return Question("q", "?", expected, grader, "made up", "made up", facts)


@pytest.mark.parametrize(
    ("grader", "expected", "answer", "right"),
    [
        ("exact", "Paris", "so <answer> paris </answer>.", True),
        ("exact", "Paris", "Paris", True),
        ("exact", "Paris", "It is Paris", False),
        ("exact", "Paris", "<answer></answer>", False),
        ("numeric", "1,234", "the total is 1234.0", True),
        ("numeric", "18", "first 17, then #### 18", True),
        ("numeric", "18", "<answer>18</answer> and not 19", True),
        ("numeric", "18", "\\boxed{18}, which is 2 * 9", True),
        ("numeric", "18", "none", False),
        ("numeric", "-3", "it is -3.", True),
        ("choice", "B", "The answer is (B).", True),
        ("choice", "B", "<answer>B. because A is wrong</answer>", False),
        ("choice", "B", "A or B? The answer is B", True),
        ("choice", "B", "no idea", False),
        ("choice", "A", "The answer is a proton.", False),
        ("choice", "A", "<answer>a proton</answer>", False),
        ("choice", "D", "the answer is d-glucose", False),
        ("choice", "A", "ANSWER: A", True),
        ("choice", "A", "I would say the answer is a.", True),
        ("choice", "B", "the answer is (b) a proton", True),
        ("choice", "B", "<answer>b</answer>", True),
        ("choice", "B", "<answer>**b)** a proton</answer>", True),
        ("choice", "B", "\\boxed{\\text{b}}", True),
        ("choice", "A", "<answer>b or a</answer>", False),
    ],
)
async def test_only_the_final_part_of_an_answer_is_graded(
    grader: str, expected: str, answer: str, right: bool
):
    assert (await grade(make_question(grader, expected), answer)).correct is right


async def test_mathematical_answers_are_compared_by_value():
    question = make_question("math", "1/2")
    rights = [
        (await grade(question, answer)).correct
        for answer in ("\\boxed{0.5}", "<answer>$\\frac{1}{2}$</answer>", "2")
    ]
    assert rights == [True, True, False]


async def test_a_text_without_an_answer_abstains_and_is_wrong():
    question = make_question("recorded", "4", right=["4", "four"])
    silent, other = await grade(question, "I cannot say"), await grade(question, "<answer>four</answer>")
    assert (silent.correct, silent.extracted) == (False, None)
    assert other.correct


def test_every_grader_extracts_nothing_from_an_empty_text():
    facts = {"entry": {}, "right": [], "entry_point": "f", "prompt": "", "test": ""}
    assert {name: extract(make_question(name, "1", **facts), "") for name in GRADERS} == dict.fromkeys(
        GRADERS
    )


@given(st.text(), st.text(alphabet="abc123", min_size=1))
def test_the_last_answer_tag_counts_whatever_surrounds_it(around: str, answer: str):
    around = around.replace("<", "(")
    assert (
        answer_extraction.answer_tag(f"{around}<answer>no</answer>{around}<answer>{answer}</answer>{around}")
        == answer
    )


@given(st.lists(st.sampled_from(["<answer>", "</Answer>", "a", "<", " "]), max_size=12).map("".join))
def test_an_answer_tag_ends_at_the_next_closing_tag(text: str):
    pairs = re.findall("<answer>(.*?)</answer>", text, re.DOTALL | re.IGNORECASE)
    assert answer_extraction.answer_tag(text) == (pairs[-1].strip() or None if pairs else None)


def test_thousands_of_answer_tags_are_parsed_in_linear_time():
    began_s = time.process_time()
    assert answer_extraction.answer_tag("<answer>" * 50_000) is None
    assert time.process_time() - began_s < 5, "a voter reads such a text in the router's event loop"


@given(st.integers(-(10**12), 10**12))
def test_a_number_may_have_thousands_separators(number: int):
    assert answer_extraction.number(f"So it is {number:,}") == str(number)


HUMANEVAL = {
    "prompt": "def half(x: int) -> int:\n    '''Half of x.'''\n",
    "entry_point": "half",
    "test": "def check(candidate):\n    assert candidate(4) == 2\n    assert candidate(9) == 4\n",
}


@pytest.mark.parametrize(
    ("answer", "right", "why"),
    [
        ("```python\ndef half(x):\n    return x // 2\n```", True, ""),
        ("    return x // 2\n", True, ""),
        ("```python\ndef half(x):\n    return x / 2\n```", False, "a test failed: AssertionError"),
        ("```python\ndef half(x:\n```", False, "the program failed: SyntaxError"),
    ],
)
async def test_a_program_is_correct_if_its_tests_pass(answer: str, right: bool, why: str):
    grading = await grade(make_question("code", "", **HUMANEVAL), answer)
    assert (grading.correct, grading.why.startswith(why)) == (right, True), grading.why


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("while True: pass", "exceeded a limit"),
        ("x = [0] * 10**10", "MemoryError"),
        ("import os; os.fork()", "BlockingIOError"),
        ("open('big', 'w').write('x' * 10**7)", "File too large"),
        ("import os; os._exit(0)", "exited early"),
        ("raise SystemExit(0)", "SystemExit"),
        ("print('x' * 10**7)", ""),
    ],
)
async def test_a_malicious_program_is_stopped_and_never_passes(program: str, why: str):
    verdict = await run_program(program, "assert False, 'the tests ran'", timeout_s=0.5, slack_s=60)
    assert not verdict.passed
    assert (why or "the tests ran") in verdict.why


async def test_a_program_that_sleeps_is_stopped():
    verdict = await run_program("import time; time.sleep(60)", "", timeout_s=0.1, slack_s=0.4)
    assert not verdict.passed
    assert "did not finish within 0.1 s" in verdict.why


async def test_a_program_has_no_network_if_the_kernel_permits_that():
    verdict = await run_program("import socket\nsocket.socket().connect(('127.0.0.1', 9))", "", timeout_s=5)
    assert not verdict.passed
    assert (
        "Network is unreachable" in verdict.why
        if verdict.no_network
        else "OSError" in verdict.why or "refused" in verdict.why
    )


def forever() -> None:
    while True:
        pass


def slow_double(number: int) -> int:
    time.sleep(0.5)
    return 2 * number


def double(number: int) -> int:
    return 2 * number


async def test_a_scorer_that_hangs_is_killed_and_the_next_one_works():
    processes = GradingPool()
    try:
        assert await processes.call(double, 1, timeout_s=60) == 2
        beside = asyncio.create_task(processes.call(slow_double, 4, timeout_s=60))
        with pytest.raises(TimeoutError):
            await processes.call(forever, timeout_s=0.2)
        assert await beside == 8, "killed with it, and made again"
        assert await asyncio.gather(*(processes.call(double, n, timeout_s=60) for n in range(3))) == [0, 2, 4]
    finally:
        processes.close()


async def test_a_number_too_large_to_divide_is_wrong_but_no_error():
    question = Question("q", "?", "0.5", "numeric", "s", "f")
    assert not (await grade(question, "<answer>9e999999</answer>")).correct
