"""Marks around untrusted text, and their removal from answers that repeat them."""

import base64
import hashlib

from hypothesis import example, given
from hypothesis import strategies as st

from conductor.model.call import Call
from conductor.plan.prompt_parts import EchoFilter, enclose, mark_key, read_marked
from conductor.plan.prompts import ANSWER
from conductor.run.events import AnswerDelta
from conductor.run.plan_run import ECHO_NOTE
from tests.conductor.team import Player, a_plan, ask_for, run_and_check, team

KEY = "abc23"
OPENING, CLOSING = f'<output-{KEY} step="0" subtask="is 2 > 1?">', f"</output-{KEY}>"
pieces = st.lists(
    st.sampled_from([OPENING, CLOSING, "<", "</", "<output", "<output-", "</output-abc2", '"', ">", "\n", "word ", "<output>", KEY])
).map("".join)  # fmt: skip


def filter_echo(parts: list[str]) -> tuple[str, int]:
    echo = EchoFilter("output", KEY)
    return "".join([*map(echo.feed, parts), echo.finish()]), echo.removed


def cut(text: str, at: list[int]) -> list[str]:
    places = sorted({min(each, len(text)) for each in at})
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@given(st.lists(st.text(max_size=20), min_size=1, max_size=4))
@example(["x", mark_key("x")])
@example(["x", mark_key("x") + mark_key("x", mark_key("x"))])
def test_a_mark_key_is_in_none_of_the_texts(texts: list[str]) -> None:
    key = mark_key(*texts)
    assert not any(key in text for text in texts)
    assert key == mark_key(*texts)


@given(st.lists(st.text(max_size=30), min_size=1, max_size=4), st.text(max_size=20))
def test_marked_texts_round_trip(texts: list[str], fact: str) -> None:
    key = mark_key(*texts, fact)
    blocks = "\n\n".join(enclose("output", key, text, fact=fact) for text in texts)
    assert read_marked("output", key, f"before\n{blocks}\nafter") == (texts, "\nafter")


@given(pieces | st.text(), st.lists(st.integers(0, 60), max_size=6))
def test_the_filter_does_not_depend_on_how_the_answer_is_split(text: str, at: list[int]) -> None:
    assert filter_echo(cut(text, at)) == filter_echo([text]) == filter_echo(list(text))


@given(
    st.text() | pieces.map(lambda text: text.replace(KEY, "abc24")), st.lists(st.integers(0, 60), max_size=6)
)
@example('<output step="0">\nfor="a b"\n</output>', [])
def test_an_answer_without_marks_is_not_changed(text: str, at: list[int]) -> None:
    assert filter_echo(cut(text, at)) == (text, 0)


@given(st.lists(st.text(alphabet='ab <>/"\n-output', max_size=12), max_size=5), st.data())
def test_marks_are_removed_and_the_text_between_them_stays(words: list[str], data: st.DataObject) -> None:
    marks = [data.draw(st.sampled_from([OPENING, CLOSING])) for _ in words]
    text = "".join(f"{mark}\n{word}" for mark, word in zip(marks, words, strict=True))
    assert filter_echo([text]) == ("".join(words), len(words))


def test_an_unclosed_mark_removes_only_its_line() -> None:
    assert filter_echo([f'<output-{KEY} step="0" subtask="never closed\nThe answer.'])[0] == "The answer."
    assert filter_echo([f"Yes.\n<output-{KEY}"]) == ("Yes.\n", 1)


def echoing(call: Call) -> list[str]:
    """Repeat the end of the prompt, then continue, as small models do."""
    text = call.messages[-1].parts[-1].text  # type: ignore[union-attr]
    return [*text, "\n\nThe answer is 4."]


async def test_an_echoed_mark_is_removed_from_outputs_and_noted() -> None:
    parrot, last = Player("b", echoing), Player("c", echoing)
    plan = a_plan(("a", ()), ("b", (0,)), ("c", (1,)))
    run = await run_and_check(team(Player("a", "two and two"), parrot, last), ask_for("Add.", plan=plan))
    steps = run.record.plans[0].steps
    assert steps[1].result.output == "\n\ntwo and two\n\npart 1\n\nThe answer is 4."
    assert run.text == run.record.answer == f"\n\n{steps[1].result.output}\n\npart 2\n\nThe answer is 4."
    assert [step.result.notes for step in steps] == [(), (ECHO_NOTE,), (ECHO_NOTE,)]
    assert all(isinstance(event.text, str) and event.text for event in run.of(AnswerDelta))


async def test_marks_in_the_users_own_text_are_not_removed() -> None:
    html = 'Use <output step="0" subtask="x">4</output-abcde> and </output>.'
    plan = a_plan(("a", ()), ("b", (0,)))
    run = await run_and_check(team(Player("a", html), Player("b", list(html))), ask_for(html, plan=plan))
    assert run.text == html
    assert run.record.plans[0].steps[1].result.notes == ()


async def test_a_worker_gets_only_the_question_its_subtask_and_outputs() -> None:
    workers = Player("a", "2"), Player("b", "3")
    await run_and_check(team(*workers), ask_for("Add.", plan=a_plan(("a", ()), ("b", (0,)))))
    assert [part.text for part in workers[0].calls[0].messages[-1].parts] == ["Add.", "\n\npart 0"]  # type: ignore[union-attr]
    key = mark_key("Add.")
    expected = f'\n\n<output-{key} step="0" subtask="part 0">\n2\n</output-{key}>\n\npart 1'
    assert workers[1].calls[0].messages[-1].parts[-1].text == expected  # type: ignore[union-attr]
    assert ANSWER not in expected


def test_a_prompt_that_contains_predictable_keys_does_not_cause_many_retries() -> None:
    foretold, digest = list[str](), hashlib.sha256(b"a question")
    for _ in range(2000):
        foretold.append(base64.b32encode(digest.digest())[:5].decode().lower())
        digest.update(b" ")
    assert mark_key("a question") == foretold[0]
    assert mark_key("a question", foretold[0]) not in foretold, "the second try is computed from all texts"
