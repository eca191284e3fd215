"""Seams between the parts of an interrupted answer: nothing is repeated, missing or replaced."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.model.call import Call, Sampling
from conductor.run.partial_answer import PartialAnswer
from serving.dispatch.resume_point import MARK, MOST_CHARS, NotContinued, Seam, anchor_of, drop_blanks
from tests.serving.play_seams import WAYS, play

TEXTS = st.text(st.sampled_from("ab \n.é日"), min_size=1, max_size=400).filter(
    lambda text: bool(text.strip())
)

UNIT_CHARS = 60
UNITS = st.text(st.sampled_from("ab |\n.é日"), min_size=10, max_size=UNIT_CHARS).filter(
    lambda unit: bool(unit.strip())
)


@st.composite
def repetitive_answers(draw: st.DrawFn) -> tuple[str, str]:
    """Draw the prefix and the rest of a repetitive answer. Some have no anchor that is long enough."""
    unit, end = draw(UNITS), draw(st.sampled_from(["", ".", "Total: 0"]))
    whole = draw(st.sampled_from(["", "Rows:\n"])) + unit * draw(st.integers(20, 60)) + end
    cut = draw(st.integers(len(whole) // 4, len(whole)))
    return whole[:cut], whole[cut:]


def stands_once(anchor: str, prefix: str) -> bool:
    return prefix.find(anchor) == len(prefix.rstrip()) - len(anchor)


def feed(seam: Seam, text: str, size: int) -> str:
    """Return the new part of `text`, fed in pieces of `size` characters."""
    pieces = [text[n : n + size] for n in range(0, len(text), size)] or [""]
    for n, piece in enumerate(pieces):
        new = seam.feed(piece, is_last=n == len(pieces) - 1)
        if new is not None:
            return new + "".join(pieces[n + 1 :])
    raise AssertionError("the last piece decides")


@given(TEXTS, st.text(st.sampled_from("ab \n.é日"), max_size=60), st.integers(1, 50))
def test_a_continuation_that_repeats_the_last_words_yields_the_rest(prefix: str, rest: str, size: int):
    whole = prefix + rest
    seam = Seam(prefix)
    text = seam.beginning + whole[len(prefix.rstrip()) :]
    new = feed(seam, text, size)
    assert prefix + new == whole or not rest.strip()  # trailing whitespace may be dropped


@given(TEXTS, TEXTS, st.integers(1, 50), st.sampled_from(["", MARK, MARK + " "]))
def test_accepted_text_always_follows_words_that_were_sent(
    prefix: str, continuation: str, size: int, mark: str
):
    seam = Seam(prefix)
    try:
        new = feed(seam, mark + continuation, size)
    except NotContinued:
        return
    before = continuation[: len(continuation) - len(new)].strip()
    assert before.endswith(seam.anchor)
    assert prefix.rstrip().endswith(before)
    assert mark or before == prefix.strip()


@given(repetitive_answers(), st.floats(0, 1), st.integers(1, 50))
def test_a_repetitive_answer_continues_correctly_from_any_place(
    cut: tuple[str, str], before: float, size: int
):
    prefix, rest = cut
    seam = Seam(prefix)
    end = prefix.rstrip()
    # Starts anywhere between the beginning of the text and the anchor.
    begin = round((len(end) - len(seam.anchor)) * before)
    try:
        new = feed(seam, f"{MARK} {(prefix + rest)[begin:]}", size)
    except NotContinued:
        assert not stands_once(seam.anchor, prefix)
        return
    assert new == rest or not rest.strip()


@given(repetitive_answers())
def test_an_anchor_grows_until_it_is_unique(cut: tuple[str, str]):
    anchor = anchor_of(cut[0])
    assert stands_once(anchor, cut[0]) or len(anchor) > MOST_CHARS - UNIT_CHARS


ROW = "| 0.00 | 0.00 | 0.00 | 0.00 |\n"


@pytest.mark.parametrize("is_all", [False, True])
def test_a_table_of_equal_rows_continues_from_its_last_or_first_words(is_all: bool):
    prefix, rest = ROW * 20 + "| 0.00 | 0.", f"00 | 0.00 | 0.00 |\n{ROW}Total: 0\n"
    seam = Seam(prefix)
    again = prefix if is_all else seam.anchor
    assert feed(seam, f"{MARK} {again}{rest}", 7) == rest


def test_a_table_without_a_unique_anchor_continues_only_if_one_row_fits():
    prefix = ROW * 60 + "| 0.00 | 0."
    rest = "00 | 1.00 | 0.00 |\n"
    assert feed(Seam(prefix), f"{MARK} {anchor_of(prefix)}{rest}", 7) == rest
    for output in (prefix + rest, anchor_of(prefix) + "00 | 0.00 | 0.00 |\n" + ROW, prefix[:-100]):
        with pytest.raises(NotContinued):
            feed(Seam(prefix), f"{MARK} {output}", 7)


@given(TEXTS | repetitive_answers().map(lambda cut: cut[0]))
def test_a_continuation_has_additional_tokens_for_the_repetition(prefix: str):
    call = PartialAnswer(prefix, breaks=1).continue_call(Call((), Sampling(max_output_tokens=100)))
    assert call.terms.rest_tokens == 100
    assert call.sampling.max_output_tokens
    assert call.sampling.max_output_tokens - 100 >= len(Seam(prefix).beginning.encode())


@pytest.mark.parametrize("output", [ROW * 8, ROW * 4 + "Total: 0"])
def test_equal_rows_without_the_mark_are_not_removed(output: str):
    with pytest.raises(NotContinued):
        feed(Seam(ROW * 4), output, 7)


def test_a_whole_repeated_answer_without_the_mark_is_recognised():
    prefix = "Rows of the table that was asked for:\n" + ROW * 4
    assert feed(Seam(prefix), prefix + ROW + "Total: 0", 7) == ROW + "Total: 0"


@pytest.mark.parametrize("size", [1, 7, 400])
def test_a_short_answer_broken_inside_a_line_is_recognised_when_repeated(size: int):
    prefix, rest = "A gateway earns trust only when the provider behind it", " misbehaves.\nAt last."
    assert feed(Seam(prefix), prefix + rest, size) == rest


@pytest.mark.parametrize(
    ("prefix", "output"),
    [
        ("All work and no play makes Jack a dull boy.", "All work and no play makes Jack a dull boy. End."),
        (
            "Ring a ring of roses, a pocket full of posies ",
            "Ring a ring of roses, a pocket full of posies up",
        ),
        (
            "Ring a ring of roses, a pocket full of posies",
            " Ring a ring of roses, a pocket full of posies up",
        ),
        (
            "Ring a ring of roses, a pocket full of posies",
            "Ring a ring of roses, a pocket full of posies\nEnd",
        ),
        (
            "Ring a ring of roses, a pocket full of posies",
            "Ring a ring of roses, a pocket full of posies " * 2,
        ),
        ("Ring a ring of roses, a pocket full of posies", "Ring a ring of roses, a pocket full of posies"),
        ("Ring a ring of roses, a pocket full", "Ring a ring of roses, a pocket full of posies"),
    ],
    ids=["a sentence", "a blank ends it", "a blank begins it", "a line", "twice", "no more", "too short"],
)
@pytest.mark.parametrize("size", [1, 7, 400])
def test_an_ambiguous_short_line_without_the_mark_is_not_removed(prefix: str, output: str, size: int):
    with pytest.raises(NotContinued):
        feed(Seam(prefix), output, size)


@given(TEXTS)
def test_an_anchor_is_the_end_of_the_text_and_starts_with_a_word(prefix: str):
    anchor = anchor_of(prefix)
    assert anchor
    assert anchor == anchor.strip()
    assert prefix.rstrip().endswith(anchor)


@pytest.mark.parametrize(
    ("blanks", "output", "new"),
    [(" ", " four", "four"), ("\n", "\n\nfour", "\nfour"), ("\n\n", "\nfour", "four"), (" ", "four", "four")],
)
def test_unsent_whitespace_is_not_shown_twice(blanks: str, output: str, new: str):
    assert drop_blanks(blanks, output) == new


async def test_clients_get_the_answer_or_its_beginning_after_breaks():
    results = await asyncio.gather(*(play(way, 8, seed=3) for way in WAYS.values()))
    for seams in results:
        assert (seams.is_right, seams.wrong, seams.outcomes["obeyed"]) == (True, [], 0)
        assert (seams.doubled, seams.missing, seams.contradicting) == (0, 0, 0)
        assert seams.continued > 0
