"""What is taken out of texts before they are kept, traced or logged."""

import json
import logging
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.model.failure import Failure
from conductor.model.messages import Message
from conductor.model.operation import TokenLogprob
from conductor.model.reply import CallResult
from conductor.run.record import Record
from conductor.run.task import Task
from serving.accounts.keys import ApiKey
from serving.redaction.personal import MOST_CHECKED, NUMBERS_A_PHONE, PersonalDataRedactor
from serving.redaction.secrets import REMOVED, StreamRedactor, learn_secret, redact_secrets
from serving.redaction.texts import map_texts
from serving.telemetry.logs import FIELDS, JsonLines

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----"
SECRETS = [
    ApiKey.make().reveal(),
    "sk-proj-" + "aB3_" * 10,
    "sk-ant-api03-" + "xY7-" * 10,
    "AIza" + "b" * 35,
    "AKIA" + "Q7" * 8,
    "ghp_" + "k" * 36,
    "github_pat_" + "m" * 30,
    "hf_" + "n" * 34,
    "xoxb-123456789012-abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4",
    PEM,
]
HARMLESS = [
    "Why is the sky blue? Because 1-2-3 sk-etches hf_x gh-pages; AKIA is a word.",
    "def pk_of(row): return row['sk-1']  # https://example.org/a?b=c wf_" + "0" * 32,
    "sha256:" + "ab12" * 16,
    "key_0123456789abcdef0123 team_0123456789abcdef0123",
]


@pytest.mark.parametrize("secret", SECRETS, ids=range(len(SECRETS)))
def test_a_secret_of_a_known_form_is_taken_out_wherever_it_stands(secret: str) -> None:
    for text in (secret, f"key={secret}.", f"({secret})", f"a\n{secret}\nb", f'{{"key": "{secret}"}}'):
        redacted = redact_secrets(text)
        assert secret not in redacted
        assert REMOVED in redacted
    assert redact_secrets(f"before {secret} after") == f"before {REMOVED} after"


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_secrets(text) == text


def test_a_password_in_an_address_and_a_key_of_this_process_are_taken_out() -> None:
    assert (
        redact_secrets("postgresql://podium:hunter2@db:5432/x") == f"postgresql://podium:{REMOVED}@db:5432/x"
    )
    learn_secret("a-provider-key-of-no-known-form")
    assert "no-known" not in redact_secrets("Bad key: a-provider-key-of-no-known-form!")
    learn_secret("ollama")  # a placeholder is a word
    assert redact_secrets("ollama runs here") == "ollama runs here"


@given(st.lists(st.sampled_from([*SECRETS, *HARMLESS, "a", "\n", " ", "-----BEGIN "]), max_size=6), st.data())
def test_a_text_in_pieces_shows_no_secret_and_nothing_else_is_lost(parts: list[str], data: st.DataObject) -> None:  # fmt: skip
    text = " ".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    stream = StreamRedactor()
    told = "".join([*map(stream.feed, pieces), stream.flush()])
    assert told == redact_secrets(text)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("Write to ada.lovelace+x@example.co.uk!", "Write to [e-mail address removed]!"),
        ("Call +44 20 7946 0958 now", "Call [telephone number removed] now"),
        ("My card is 4111 1111 1111 1111.", "My card is [card number removed]."),
        ("IBAN DE89 3704 0044 0532 0130 00 please", "IBAN [account number removed] please"),
        ("Order 4111 1111 1111 1112, 1+1=2, 2026-11-22", "Order 4111 1111 1111 1112, 1+1=2, 2026-11-22"),
        ("@home at 10:30, x@y", "@home at 10:30, x@y"),
    ],
)
def test_personal_data_of_a_known_form_is_taken_out(text: str, redacted: str) -> None:
    assert PersonalDataRedactor()(text) == redacted
    assert PersonalDataRedactor()(redacted) == redacted


def test_of_an_output_of_which_something_was_taken_out_no_token_is_kept() -> None:
    likely = (TokenLogprob("sk-", -0.1), TokenLogprob("abc", -0.2))
    kept, cut = (
        CallResult(text, "a", "m", None, None, None, logprobs=likely)
        for text in ("sk-abc", "sk-" + "aB3" * 16)
    )
    assert map_texts(kept, redact_secrets).logprobs == likely
    assert map_texts(cut, redact_secrets).logprobs == ()


def test_every_text_of_a_record_is_looked_at() -> None:
    secret = SECRETS[1]
    failure = Failure("WorkerRefused", f"no {secret}", secret, {"worker": "a", "said": secret})
    record = Record("wf_1", Task((Message.of("user", secret),), model=secret), 0.0, failure=failure, answer=secret)  # fmt: skip
    redacted = map_texts(record, redact_secrets)
    assert secret not in repr(redacted)
    assert (redacted.id, redacted.failure and redacted.failure.code) == ("wf_1", "WorkerRefused")
    assert map_texts(redacted, redact_secrets) is redacted


def test_a_log_line_has_no_secret_whatever_it_is_in() -> None:
    line = logging.LogRecord("podium", logging.INFO, "x", 1, "said %s", (SECRETS[1],), None)
    setattr(line, FIELDS, {"errors": [f"a {SECRETS[2]}"], "n": 1, "deep": {"x": SECRETS[3]}})
    written = json.loads(JsonLines().format(line))
    assert written["n"] == 1
    assert not [secret for secret in SECRETS if secret in str(written)]


@pytest.mark.parametrize(
    "part",
    ["-eyJaaaaaaaa", "-eyJaaaaaaaa.eyJ", "a-.", "a@", "1 ", "DE12", "DE89370400440532013000 ", "+49 30 123456 ", "+(", "://a:"],
)  # fmt: skip
def test_no_text_of_a_stranger_takes_long_to_look_through(part: str) -> None:
    """The router does nothing else meanwhile. Quadratic patterns took from 5 s to a minute."""
    text = f"1 @ {part * (150_000 // len(part))}"
    began_s = time.perf_counter()
    PersonalDataRedactor()(text + "a" * 150_000)
    assert time.perf_counter() - began_s < 2


@pytest.mark.parametrize("begin", ["-----BEGIN PRIVATE KEY-----\n", "-----BEGIN A ", "", "x" * 5000])
@pytest.mark.parametrize("piece", ["word ", "abcde", "A "])
def test_no_answer_in_pieces_takes_long_to_look_through(begin: str, piece: str) -> None:
    stream = StreamRedactor()
    began_s = time.perf_counter()
    for each in [begin, *[piece] * 15_000]:
        stream.feed(each)
    stream.flush()
    assert time.perf_counter() - began_s < 2


def test_a_key_that_never_ends_is_told_as_removed_at_once_and_what_follows_one_that_ends_is_told() -> None:
    stream = StreamRedactor()
    assert stream.feed("Here: -----BEGIN PRIVATE KEY-----\nMII\n") == f"Here: {REMOVED}"
    assert [stream.feed(piece) for piece in ("IBAA\n", "-----END PRIV", "ATE KEY----", "- so ")] == [
        "",
        "",
        "",
        " so ",
    ]
    assert stream.feed("-----BEGIN PRIVATE KEY-----\n") + stream.flush() == REMOVED


@pytest.mark.parametrize(
    ("number", "most", "removed"),
    [
        ("+999 {:09}", MOST_CHECKED, "[telephone number removed]"),
        ("900000000{:04}", MOST_CHECKED * NUMBERS_A_PHONE, "[card number removed]"),
        ("DE00370400440532{:06}", MOST_CHECKED * NUMBERS_A_PHONE, "[account number removed]"),
    ],
)
def test_what_looks_like_a_number_beyond_those_that_are_checked_in_a_request_is_taken_out_too(
    number: str, most: int, removed: str
) -> None:
    texts = [text for n in range(most * 2) if PersonalDataRedactor()(text := number.format(n)) == text]
    texts = texts[: most + 100]
    redact = PersonalDataRedactor()
    assert [redact(text) for text in texts] == texts[:most] + [removed] * 100
    assert redact(texts[0]) == texts[0], "what has been looked at costs nothing again"
    numbers = "; ".join(texts)
    assert PersonalDataRedactor()(numbers) == "; ".join(texts[:most] + [removed] * 100)
