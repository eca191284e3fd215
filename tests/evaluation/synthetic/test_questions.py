from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.synthetic.operations import FAMILIES, read
from evaluation.synthetic.questions import parts, questions, solution, split_of


def test_equal_seeds_produce_equal_questions_and_others_do_not():
    assert questions(3, 50) == questions(3, 50)
    assert {q.text for q in questions(3, 50)} != {q.text for q in questions(4, 50)}


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_training_and_held_out_questions_have_no_common_text(one: int, other: int):
    trained = {q.text for q in questions(one, 40, split="train")}
    held_out = {q.text for q in questions(other, 40, split="held_out")}
    assert not trained & held_out


def test_no_question_is_repeated_and_ids_are_unique():
    drawn = questions(1, 800, 0.5)
    assert len({q.text for q in drawn}) == len({q.id for q in drawn}) == 800


def test_composite_questions_have_the_requested_share_and_two_different_families():
    drawn = questions(1, 1000, 0.4)
    chains = [q.facts["chain"] for q in drawn]
    assert 0.35 < sum(len(chain) == 2 for chain in chains) / 1000 < 0.45
    assert all(len(set(chain)) == len(chain) for chain in chains)


def test_every_family_occurs_as_single_first_and_second():
    drawn = questions(1, 1500, 0.5)
    assert {q.family for q in drawn if len(q.facts["chain"]) == 1} == set(FAMILIES)
    places = Counter(
        (place, family) for q in drawn for place, family in enumerate(q.facts["chain"]) if ">" in q.family
    )
    assert set(places) == {(place, family) for place in (0, 1) for family in FAMILIES}


@given(st.integers(0, 2**40))
def test_every_question_can_be_parsed_into_its_families(seed: int):
    for question in questions(seed, 20, 0.5):
        families = [part.operation.family for words in parts(question.text) if (part := read(words))]
        assert families == question.facts["chain"]
        assert split_of(question.text) == "held_out"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Work out 12 * 3 + 4. Answer with the result alone.", "40"),
        ("Write 94 as a Roman numeral. Answer with the result alone.", "XCIV"),
        ("Shift each letter of zoo by 2. Answer with the result alone.", "bqq"),
        ("Say yes or no: is 14 odd or a multiple of 7. Answer with the result alone.", "yes"),
        ("First sort the digits of 71. Then spell the result backwards. Answer with the result alone.", None),
        (
            "First turn 31 into a Roman numeral. Then spell the result backwards. Answer with the result alone.",
            "IXXX",
        ),
        (
            "First multiply 11 by 2 and add 3. Then put the digits of the result in order. Answer with the result alone.",
            "25",
        ),
    ],
)
def test_computed_answers_match_those_calculated_by_hand(text: str, answer: str | None):
    if answer is None:
        with pytest.raises(ValueError, match="not a word"):
            solution(text)
    else:
        assert solution(text) == answer


def test_families_with_too_few_questions_are_an_error():
    with pytest.raises(ValueError, match=r"have only .* different questions, not 9000"):
        questions(0, 9000, 0.0, ["numerals"])
    with pytest.raises(ValueError, match="unknown family 'magic'"):
        questions(0, 1, 0.0, ["magic"])
    with pytest.raises(ValueError, match="no two of the families can be chained"):
        questions(0, 1, 1.0, ["ciphers"])
