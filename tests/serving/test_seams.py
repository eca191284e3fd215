"""An answer that broke off goes on so that nobody sees where: nothing twice, nothing missing, nothing else instead."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.model.call import Call, Sampling
from conductor.run.continuing import Shown
from serving.layers.seam import MARK, NotContinued, Seam, anchor_of, drop_blanks
from tests.serving.play_seams import WAYS, play

TEXTS = st.text(st.sampled_from("ab \n.é日"), min_size=1, max_size=400).filter(
    lambda text: bool(text.strip())
)


def feed(seam: Seam, text: str, size: int) -> str:
    """What is new in `text`, which comes in pieces of that size."""
    pieces = [text[n : n + size] for n in range(0, len(text), size)] or [""]
    for n, piece in enumerate(pieces):
        new = seam.feed(piece, is_last=n == len(pieces) - 1)
        if new is not None:
            return new + "".join(pieces[n + 1 :])
    raise AssertionError("the last piece decides")


@given(TEXTS, st.text(st.sampled_from("ab \n.é日"), max_size=60), st.integers(1, 50))
def test_the_last_words_again_and_then_the_rest_is_the_rest(prefix: str, rest: str, size: int):
    whole = prefix + rest
    seam = Seam(prefix)
    told = seam.beginning + whole[len(prefix.rstrip()) :]
    new = feed(seam, told, size)
    assert prefix + new == whole or not rest.strip()  # of an end that is blank the blanks may go


@given(TEXTS, TEXTS, st.integers(1, 50), st.sampled_from(["", MARK, MARK + " "]))
def test_whatever_is_said_what_is_kept_of_it_came_right_after_words_that_were_there(
    prefix: str, said: str, size: int, mark: str
):
    seam = Seam(prefix)
    try:
        new = feed(seam, mark + said, size)
    except NotContinued:
        return
    before = said[: len(said) - len(new)].strip()
    assert before.endswith(seam.anchor)
    assert prefix.rstrip().endswith(before)
    assert mark or before == prefix.strip()


@given(TEXTS)
def test_a_call_has_room_for_what_is_to_be_repeated(prefix: str):
    call = Shown(prefix, breaks=1).continue_call(Call((), Sampling(max_output_tokens=100)))
    assert call.rest_tokens == 100
    assert call.sampling.max_output_tokens
    assert call.sampling.max_output_tokens - 100 >= len(Seam(prefix).beginning.encode())


@given(TEXTS)
def test_an_anchor_is_the_end_of_what_is_there_and_begins_with_a_word(prefix: str):
    anchor = anchor_of(prefix)
    assert anchor
    assert anchor == anchor.strip()
    assert prefix.rstrip().endswith(anchor)


@pytest.mark.parametrize(
    ("blanks", "said", "new"),
    [(" ", " four", "four"), ("\n", "\n\nfour", "\nfour"), ("\n\n", "\nfour", "four"), (" ", "four", "four")],
)
def test_blanks_that_were_not_sent_are_not_shown_twice(blanks: str, said: str, new: str):
    assert drop_blanks(blanks, said) == new


async def test_what_clients_see_of_answers_that_break_off_is_the_answer_or_its_beginning():
    found = await asyncio.gather(*(play(way, 8, seed=3) for way in WAYS.values()))
    for seams in found:
        assert (seams.is_right, seams.wrong, seams.told["obeyed"]) == (True, [], 0)
        assert (seams.doubled, seams.missing, seams.contradicting) == (0, 0, 0)
        assert seams.continued > 0
