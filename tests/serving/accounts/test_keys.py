"""Format of API keys, property-tested."""

import hashlib
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.accounts.caller import Scope, join, parse_scopes
from serving.accounts.keys import ALPHABET, ApiKey, KeyFormError

SECRETS = st.binary(min_size=32, max_size=32)
CHARACTERS = ALPHABET + "_-. ä"


@given(SECRETS)
def test_a_key_round_trips_and_has_a_fixed_format(secret: bytes) -> None:
    text = ApiKey.of(secret).reveal()
    assert ApiKey(text) == ApiKey.of(secret)
    assert (len(text), text[:3]) == (52, "pk_")
    assert set(text[3:]) <= set(ALPHABET)


@given(SECRETS, SECRETS)
def test_different_secrets_have_different_keys_and_hashes(one: bytes, other: bytes) -> None:
    first, second = ApiKey.of(one), ApiKey.of(other)
    assert (first == second) == (one == other) == (first.hash == second.hash)


@given(SECRETS, st.integers(0, 51), st.sampled_from(CHARACTERS))
def test_one_wrong_character_is_detected_without_a_database(
    secret: bytes, place: int, character: str
) -> None:
    text = ApiKey.of(secret).reveal()
    wrong = text[:place] + character + text[place + 1 :]
    if wrong != text:
        with pytest.raises(KeyFormError):
            ApiKey(wrong)


@given(SECRETS, st.integers(3, 50))
def test_two_swapped_characters_are_detected(secret: bytes, place: int) -> None:
    text = ApiKey.of(secret).reveal()
    wrong = text[:place] + text[place + 1] + text[place] + text[place + 2 :]
    if wrong != text:
        with pytest.raises(KeyFormError):
            ApiKey(wrong)


@given(SECRETS, st.integers(0, 51))
def test_a_truncated_key_is_detected(secret: bytes, length: int) -> None:
    with pytest.raises(KeyFormError):
        ApiKey(ApiKey.of(secret).reveal()[:length])


@given(
    st.one_of(
        st.text(st.characters(max_codepoint=1000)), st.from_regex(r"pk_[0-9A-Za-z]{49}\n?", fullmatch=True)
    )
)
def test_an_invalid_key_is_an_error_that_does_not_show_it(text: str) -> None:
    try:
        key = ApiKey(text)
    except KeyFormError as error:
        message = str(error)
    else:
        message = repr(key)
        assert key.reveal() == text
    assert len(text) < 10 or text not in message


@given(SECRETS)
def test_only_a_keys_last_characters_are_shown(secret: bytes) -> None:
    key = ApiKey.of(secret)
    line = logging.makeLogRecord({"msg": "%s %r", "args": (key, key)}).getMessage()
    for shown in (repr(key), str(key), f"{key}", repr([key]), repr({"key": key}), line):
        assert key.reveal() not in shown
        assert key.reveal()[3:-4] not in shown
        assert key.hash not in shown
    assert repr(key) == f"pk_…{key.hint}"


def test_keys_are_random_and_their_format_is_fixed() -> None:
    assert len({ApiKey.make().reveal() for _ in range(100)}) == 100
    zero = ApiKey.of(bytes(32))
    assert zero.reveal() == "pk_" + "0" * 43 + "1zqVSB"
    assert zero.hash == hashlib.sha256(zero.reveal().encode()).hexdigest()


@given(st.sets(st.sampled_from(Scope), min_size=1))
def test_scopes_round_trip(scopes: set[Scope]) -> None:
    assert parse_scopes(join(scopes)) == scopes


@pytest.mark.parametrize(
    ("text", "pattern"), [("run,fly", "'fly'"), ("", "at least one scope"), (" , ", "at least one scope")]
)
def test_unknown_scopes_are_named_in_the_error(text: str, pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        parse_scopes(text)
