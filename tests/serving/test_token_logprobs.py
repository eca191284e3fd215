"""Log probabilities of vLLM's tokens, aligned with the visible text."""

from typing import Any

from serving.deployments.coalescing import after
from serving.workers.vllm import Chunk
from tests.lazy import lazy

Logprob = lazy("vllm.logprobs:Logprob")
CompletionOutput = lazy("vllm.outputs:CompletionOutput")
LogprobReader = lazy("serving.deployments.token_logprobs:LogprobReader")

THOUGHTS_END = 99


def piece(*tokens: tuple[int, str]) -> CompletionOutput:
    """Return an output with a likelier and an impossible alternative for each token."""
    places: Any = [
        {
            id: Logprob(-1.0, 2, text),
            1000: Logprob(-0.5, 1, "likelier"),
            1001: Logprob(float("-inf"), 3, "never"),
        }
        for id, text in tokens
    ]
    return CompletionOutput(0, "", [id for id, _ in tokens], None, places)


def content_ids(ids: list[int]) -> list[int]:
    return ids[ids.index(THOUGHTS_END) + 1 :] if THOUGHTS_END in ids else []


def test_a_token_is_sent_with_the_text_in_which_it_begins() -> None:
    reader = LogprobReader(2)
    held_back = reader.feed(piece((1, "One")), "")
    parts = reader.feed(piece((2, " two"), (3, "")), "One tw")
    rest = reader.feed(piece((4, "é"), (5, " stop"), (6, "<end>")), "oé")
    assert held_back == ()
    assert [each.token for each in (*parts, *rest)] == ["One", " two", "", "é"]
    assert [(each.token, each.logprob) for each in parts[0].top] == [("likelier", -0.5), ("One", -1.0)]
    assert [each.logprob for each in LogprobReader(3).feed(piece((1, "a")), "a")[0].top] == [
        -0.5,
        -1.0,
        -9999.0,
    ]
    assert LogprobReader(0).feed(piece((1, "a")), "a")[0].top == ()


def test_reasoning_tokens_are_not_reported() -> None:
    reader = LogprobReader(0, content_ids)
    assert reader.feed(piece((1, "Hm"), (2, ".")), "") == ()
    parts = reader.feed(piece((3, " So"), (THOUGHTS_END, "</think>"), (4, "Blue")), "Blue")
    rest = reader.feed(piece((5, ".")), ".")
    assert [each.token for each in (*parts, *rest)] == ["Blue", "."]


def test_without_token_ids_the_answer_starts_at_its_first_text() -> None:
    def unknown(ids: list[int]) -> list[int]:
        raise NotImplementedError

    reader = LogprobReader(0, unknown)
    assert reader.feed(piece((1, "Hm")), "") == ()
    assert [each.token for each in reader.feed(piece((2, "Blue")), "Blue")] == ["Blue"]


def test_joined_chunks_have_the_tokens_of_both() -> None:
    one, two = (
        Chunk(text, "", None, 1, 0, 1, 0, logprobs=LogprobReader(0).feed(piece((1, text)), text))
        for text in "ab"
    )
    assert [each.token for each in after(one, two).logprobs] == ["a", "b"]
