"""Evidence that a failure affects all callers."""

import time

import pytest

from conductor.model.call import Call
from conductor.model.messages import Message
from conductor.model.terms import Terms
from serving.witnesses import MEMORY_S, MOST, OFTEN, Witness, Witnesses, witness_of

A, A2, B = Witness("a", 1), Witness("a", 2), Witness("b", 1)


def called_by(*keys: str) -> Witnesses:
    witnesses = Witnesses()
    for key in keys:
        witnesses.traffic.note(key)
    return witnesses


def test_two_keys_are_enough_evidence_but_one_is_not_if_others_call():
    witnesses = called_by("a", "b")
    assert not any(witnesses.tell("failed", each) for each in [A, A2] * 20)
    assert witnesses.tell("failed", B)


def test_if_only_one_key_calls_two_prompts_or_many_repetitions_are_enough():
    assert [called_by("a").tell("failed", A), called_by("b").tell("failed", A)] == [False, False]
    witnesses = called_by("a")
    assert [witnesses.tell("failed", each) for each in (A, A2)] == [False, True]
    witnesses = called_by("a")
    assert [witnesses.tell("failed", A) for _ in range(OFTEN)] == [False] * (OFTEN - 1) + [True]


def test_old_evidence_of_others_does_not_count(monkeypatch: pytest.MonkeyPatch):
    witnesses = called_by("a", "b")
    for prompt in range(OFTEN):
        witnesses.tell("busy", Witness("b", prompt))
    now_s = time.monotonic() + 2 * MEMORY_S
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    witnesses.traffic.note("a")
    assert not witnesses.tell("busy", A), "one prompt may be to blame"
    assert [witnesses.tell("busy", A) for _ in range(OFTEN - 1)] == [False] * (OFTEN - 2) + [True]


def test_without_keys_one_clear_failure_is_enough():
    assert called_by("").tell("failed", Witness("", 1))
    witnesses = called_by("")
    assert not witnesses.tell("refused", Witness("", 1), is_clear=False)
    assert witnesses.tell("refused", Witness("", 2), is_clear=False)


def test_evidence_of_another_failure_or_an_earlier_time_does_not_count():
    witnesses = called_by("a", "b")
    witnesses.tell("failed", A)
    assert not witnesses.tell("busy", B)
    witnesses.forget("failed")
    assert not witnesses.tell("failed", B)


def test_the_memory_of_evidence_is_limited():
    witnesses = called_by(*map(str, range(10 * MOST)))
    for prompt in range(10 * MOST):
        witnesses.tell("failed", Witness("a", prompt))
    assert len(witnesses._witnesses["failed"]) == MOST
    assert len(witnesses.traffic._called_at_s) == MOST


def test_a_witness_is_a_key_and_a_prompt():
    one, again, other = (
        witness_of(Call((Message.of("user", text),), terms=Terms(payer="k"))) for text in ("x", "x", "y")
    )
    assert one == again != other


def test_keys_of_one_team_count_as_one_witness():
    def outcomes_of(*keys: tuple[str, str]) -> list[bool]:
        calls = [Call((Message.of("user", "x"),), terms=Terms(payer=key, team=team)) for key, team in keys]
        witnesses = called_by(*(each.terms.tenant for each in calls), "another")
        return [witnesses.tell("failed", witness_of(each)) for each in calls]

    assert outcomes_of(("a", "t"), ("a2", "t"), ("a3", "t")) == [False, False, False]
    assert outcomes_of(("a", "t"), ("b", "u")) == [False, True]
    assert outcomes_of(("a", "t"), ("b", "")) == [False, True]
    assert outcomes_of(("a", ""), ("b", "")) == [False, True]
