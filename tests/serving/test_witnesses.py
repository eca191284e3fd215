"""Whether what one call met with is so for everybody."""

import time

import pytest

from conductor.model.call import Call
from conductor.model.messages import Message
from conductor.model.terms import Terms
from serving.witnesses import MEMORY_S, MOST, OFTEN, Witness, Witnesses, witness_of

A, A2, B = Witness("a", 1), Witness("a", 2), Witness("b", 1)


def called_by(*keys: str) -> Witnesses:
    seen = Witnesses()
    for key in keys:
        seen.traffic.note(key)
    return seen


def test_two_keys_are_enough_and_one_is_not_where_another_calls():
    seen = called_by("a", "b")
    assert not any(seen.tell("failed", each) for each in [A, A2] * 20)
    assert seen.tell("failed", B)


def test_where_one_key_alone_calls_two_prompts_are_enough_or_one_often():
    assert [called_by("a").tell("failed", A), called_by("b").tell("failed", A)] == [False, False]
    seen = called_by("a")
    assert [seen.tell("failed", each) for each in (A, A2)] == [False, True]
    seen = called_by("a")
    assert [seen.tell("failed", A) for _ in range(OFTEN)] == [False] * (OFTEN - 1) + [True]


def test_what_others_were_told_long_ago_does_not_make_one_prompt_evidence(monkeypatch: pytest.MonkeyPatch):
    seen = called_by("a", "b")
    for prompt in range(OFTEN):
        seen.tell("busy", Witness("b", prompt))
    now_s = time.monotonic() + 2 * MEMORY_S
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    seen.traffic.note("a")
    assert not seen.tell("busy", A), "one prompt may be to blame"
    assert [seen.tell("busy", A) for _ in range(OFTEN - 1)] == [False] * (OFTEN - 2) + [True]


def test_where_keys_are_off_one_is_enough_of_what_is_clear():
    assert called_by("").tell("failed", Witness("", 1))
    seen = called_by("")
    assert not seen.tell("refused", Witness("", 1), is_clear=False)
    assert seen.tell("refused", Witness("", 2), is_clear=False)


def test_witnesses_of_another_thing_or_of_what_is_over_say_nothing():
    seen = called_by("a", "b")
    seen.tell("failed", A)
    assert not seen.tell("busy", B)
    seen.forget("failed")
    assert not seen.tell("failed", B)


def test_a_flood_of_prompts_and_keys_is_not_kept():
    seen = called_by(*map(str, range(10 * MOST)))
    for prompt in range(10 * MOST):
        seen.tell("failed", Witness("a", prompt))
    assert len(seen._witnesses["failed"]) == MOST
    assert len(seen.traffic._called_at_s) == MOST


def test_a_witness_is_a_key_and_a_prompt():
    one, again, other = (
        witness_of(Call((Message.of("user", text),), terms=Terms(payer="k"))) for text in ("x", "x", "y")
    )
    assert one == again != other


def test_two_keys_of_a_team_are_one_witness_and_keys_without_a_team_each_one():
    def told(*keys: tuple[str, str]) -> list[bool]:
        calls = [Call((Message.of("user", "x"),), terms=Terms(payer=key, team=team)) for key, team in keys]
        seen = called_by(*(each.terms.tenant for each in calls), "another")
        return [seen.tell("failed", witness_of(each)) for each in calls]

    assert told(("a", "t"), ("a2", "t"), ("a3", "t")) == [False, False, False]
    assert told(("a", "t"), ("b", "u")) == [False, True]
    assert told(("a", "t"), ("b", "")) == [False, True]
    assert told(("a", ""), ("b", "")) == [False, True]
