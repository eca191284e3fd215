"""Lone surrogates in a client's body. JavaScript escapes them if it cuts a text inside a character."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.model.characters import whole_value, with_whole_escapes
from tests.serving.api.served import PRICE, Json, plan, served, step, team
from tests.wires.openai import OpenAIWire
from tests.wires.server import serving

BODIES: dict[str, tuple[str, Json]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Fine \ud83d day"}]}),
    "messages": ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "text", "text": "Fine \ud83d day"}]}]}),
    "responses": ("/v1/responses", {"input": "Fine \ude00 day"}),
    "completions": ("/v1/completions", {"prompt": "Fine \ud83d day"}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "model"),
    [*((each, "a") for each in BODIES), *((each, "mini") for each in BODIES if each != "completions")],
)
async def test_a_lone_surrogate_in_a_body_becomes_the_replacement_character(dialect: str, model: str):
    path, body = BODIES[dialect]
    async with serving(OpenAIWire()) as upstream:
        own: Json = {"name": "a", "kind": "openai", "model": "m", "price": PRICE, "base_url": f"{upstream.url}/v1", "serves": ["chat", "text_completion"]}  # fmt: skip
        async with served(team(plan(step("a")), workers=[own], workflows={})) as api:
            content = json.dumps({"model": model, **body}).encode()
            answer = await api.http.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text
    assert "Fine \ufffd day" in json.dumps(upstream.body, ensure_ascii=False)


PIECES = st.lists(st.sampled_from(["\ud83d", "\ude00", "\\", '"', "a", "\\ud83d", "u", "\n", "é", "😀"])).map(
    "".join
)


@given(st.dictionaries(PIECES, PIECES), st.booleans())
def test_valid_escapes_are_not_changed(value: dict[str, Any], upper: bool):
    body = json.dumps(value)
    if upper:
        body = body.replace("\\ud83d", "\\uD83D")
    value = json.loads(body)
    # after the replacement two names may be equal, and then the last one counts, as in the parser
    assert json.loads(with_whole_escapes(body.encode())) == whole_value(value)


def test_a_body_of_backslashes_takes_linear_time():
    def cpu_s(n: int) -> float:
        began_s = time.process_time()
        with_whole_escapes(b"\\" * n + b"\\ud83d")
        return time.process_time() - began_s

    short_s, long_s = (min(cpu_s(n) for _ in range(3)) for n in (100_000, 800_000))
    assert long_s < 24 * short_s, "eight times the length: 8 if linear, 64 if quadratic"
