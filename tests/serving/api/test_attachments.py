"""Attachments: which parts of a request count as files."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.model.messages import File, Message, Text
from conductor.run.call_bound import MOST_PDF_TOKENS, PDF_TOKENS, file_tokens
from serving.api.attachments import NAME_CHARS, file_of, to_file
from serving.settings.settings import parse
from serving.settings.worker_profile import reads_pdfs


def base64_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), st.text())
def test_an_attached_text_is_unchanged_and_its_name_is_one_line(text: str, name: str) -> None:
    file = to_file(name, f"data:text/plain;base64,{base64_of(b'.' + text.encode())}")
    assert (file.text, file.url) == (f".{text}", "")
    assert file.name == file.name.strip()
    assert file.name.isprintable()
    assert 0 < len(file.name) <= NAME_CHARS


@given(st.binary())
def test_a_pdf_keeps_its_bytes_and_has_a_limited_token_estimate(content: bytes) -> None:
    pdf = b"\n%PDF-1.4" + content
    for given_as in (base64_of(pdf), f"data:application/octet-stream;base64,{base64_of(pdf)}"):
        file = to_file("a.pdf", given_as)
        assert file == File("a.pdf", f"data:application/pdf;base64,{base64_of(pdf)}")
        assert file.n_bytes == len(pdf)
        assert PDF_TOKENS <= file_tokens(file) <= MOST_PDF_TOKENS
    assert Message("user", (Text("What?"), file)).has_pdf


def test_files_may_be_text_pdf_or_unnamed() -> None:
    assert to_file(None, "data:,a%20b") == File("document.txt", text="a b")
    assert file_of("notes", b"\xef\xbb\xbfWords") == File("notes", text="Words")
    assert file_of("notes", b"It begins with %PDF-1.7.").text
    assert file_of("a", b"\xff\xfe%PDF-1.7").url
    assert file_tokens(File("notes", text="Wörter")) == 7


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04\xff", b"\x89PNG\r\n\x1a\n", "UTF-16".encode("utf-16"), b"a\0b"]
)
def test_an_unreadable_file_is_rejected(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"file (is|must be)"):
        file_of("a", content)


WORKERS = [
    ({"kind": "openai", "model": "gpt-5.1"}, True),
    ({"kind": "openai", "model": "gpt-3.5-turbo"}, False),
    ({"kind": "openai", "model": "gpt-5.1", "base_url": "http://127.0.0.1:1/v1"}, False),
    ({"kind": "openai", "model": "x", "base_url": "http://127.0.0.1:1/v1", "reads_pdfs": True}, True),
    ({"kind": "anthropic", "model": "claude-sonnet-4-5"}, True),
    ({"kind": "anthropic", "model": "claude-opus-5", "reads_pdfs": False}, False),
    ({"kind": "gemini", "model": "gemini-3-pro"}, True),
    ({"kind": "vllm", "model": "m", "reads_pdfs": True}, False),
    ({"kind": "scripted", "replies": ["Yes."]}, False),
]


def test_pdf_support_has_a_default_per_provider_and_model() -> None:
    settings = parse({"workers": [{"name": f"w{n}"} | fields for n, (fields, _) in enumerate(WORKERS)]})
    assert [reads_pdfs(worker) for worker in settings.workers] == [expected for _, expected in WORKERS]
