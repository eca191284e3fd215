"""Reading of streams: the times that a user sees."""

import json

import pytest

from loadtest.sse import BrokenStreamError, read_stream


def data(**chunk: object) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n"


def delta(text: str, finish: str | None = None) -> bytes:
    return data(choices=[{"delta": {"content": text}, "finish_reason": finish}])


def at_half_seconds(*lines: bytes) -> list[tuple[float, bytes]]:
    """Return the lines with times half a second apart, from 100.5 s on."""
    return [(100.5 + number / 2, line) for number, line in enumerate(lines)]


def test_a_stream_is_timed_from_the_request_and_between_its_tokens() -> None:
    stream = at_half_seconds(
        data(choices=[{"delta": {"role": "assistant", "content": ""}}]),
        b": heartbeat\n",
        b"\n",
        data(choices=[], podium={"type": "step_began", "step": 0}),
        delta("Par"),
        delta("is."),
        delta("", "stop"),
        data(choices=[], usage={"total_tokens": 9}, podium={"workflow_id": "wf_1"}),
        b"data: [DONE]\n",
    )
    stream_result = read_stream(stream, began_s=100.0)
    assert (stream_result.text, stream_result.totals, stream_result.total_tokens) == (
        "Paris.",
        {"workflow_id": "wf_1"},
        9,
    )
    assert (stream_result.first_progress_ms, stream_result.first_token_ms) == (2000, 2500)
    assert stream_result.token_gaps_ms == [500]
    assert stream_result.done_ms == 4500


def test_a_stream_without_done_counts_as_interrupted() -> None:
    with pytest.raises(BrokenStreamError, match="after 3 characters") as caught:
        read_stream(at_half_seconds(delta("Par")), began_s=0.0)
    assert caught.value.kind == "cut"


def test_an_error_in_the_stream_is_counted_by_its_code() -> None:
    error = {"message": "Too late.", "type": "timeout_error", "code": "deadline_exceeded"}
    with pytest.raises(BrokenStreamError, match=r"Too late\.") as caught:
        read_stream(at_half_seconds(delta("Par"), data(error=error)), began_s=0.0)
    assert caught.value.kind == "deadline_exceeded"


@pytest.mark.parametrize("line", [b"data: <html>\n", b"data: [1]\n"])
def test_an_event_that_is_not_a_json_object_breaks_the_stream(line: bytes) -> None:
    with pytest.raises(BrokenStreamError, match="not a JSON object") as caught:
        read_stream(at_half_seconds(line), began_s=0.0)
    assert caught.value.kind == "no_json"
