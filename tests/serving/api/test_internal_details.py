"""Details for the operator: in the record and the log, but never in an answer, stream, event or reason for a caller."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from conductor import errors
from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.failure import Attempt
from conductor.model.reply import Delta, Reply
from conductor.model.usage import Price
from serving.telemetry.logs import JsonLines
from tests.serving.api.served import ASK, Json, Served, plan, scripted, served, step, team
from tests.serving.api.test_errors import tree
from tests.wires.anthropic import AnthropicWire
from tests.wires.gemini import GeminiWire
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, serving

WIRES = {"openai": OpenAIWire(), "anthropic": AnthropicWire(), "gemini": GeminiWire()}
KEY_ENV, KEY, WORDS = "PLANTED_KEY_VARIABLE", "planted-key-0123456789", "planted words of the provider"
PLANTED = "http://10.0.0.7:8443 says no; look at PLANTED_KEY_VARIABLE"
ONE_TRY = {"attempts": 1}


class RaisingWorker:
    """Worker that raises the given kind of error."""

    def __init__(self, name: str, price: Price | None, kind: str, late: bool = False) -> None:
        self.name, self._kind, self._late = name, kind, late

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_reply(self.name, "none", self._deltas())

    async def _deltas(self) -> AsyncGenerator[Delta]:
        if self._late:
            yield Delta("So ")
        tried = Attempt(self.name, "WorkerBusy", "It was busy.", 0.0, PLANTED)
        raise getattr(errors, self._kind)("It went wrong.", detail=PLANTED, attempts=(tried,))


def raising(kind: str, *, late: bool = False) -> Json:
    return {
        "name": "faulty", "kind": "python", "factory": f"{__name__}:RaisingWorker", "options": {"kind": kind, "late": late},
        "retry": ONE_TRY,
    }  # fmt: skip


PASSED_THROUGH: Json = {"model": "faulty", "podium": {"progress": "events", "trace": True}}
GUARDED: Json = {"model": "guarded", "podium": {"trace": True}}
PLANNED: Json = {"model": "mini", "podium": {"progress": "events", "trace": True}}
WAYS: tuple[Json, ...] = tuple(
    call | {"stream": stream}
    for stream in (False, True)
    for call in (
        {"model": "faulty"}, PASSED_THROUGH, GUARDED, PLANNED, {"model": "mini", "podium": {"progress": "reasoning"}}
    )
)  # fmt: skip
"""Ways to reach the worker `faulty`: directly, with a fallback, and as a step, with events, reasoning and traces."""


async def all_said(api: Served, ways: Sequence[Json] = WAYS) -> str:
    requests = [api.http.post("/v1/chat/completions", json=ASK | way) for way in ways]
    answers = await asyncio.gather(*requests, api.http.post("/v1/plans", json=ASK))
    return "\n".join(f"{answer.headers}{answer.text}" for answer in answers)


def around(faulty: Json, *, conductor: Json | None = None, first_byte_s: float) -> Json:
    """Return settings with `faulty`, a copy `guarded` that has a fallback, and healthy workers."""
    guarded = faulty | {"name": "guarded", "fallbacks": ["a"], "in_pool": False}
    workers = [faulty, guarded, scripted("a"), scripted("b"), scripted("c")]
    settings = team(plan(step(0)), workers=workers, workflows={}, limits={"first_byte_s": first_byte_s})
    if conductor:
        settings["workers"][0] = conductor
    return settings


async def records(api: Served, read: set[str] | None = None) -> str:
    """Return the records that are not in `read`, and add them to it."""
    listed = (await api.http.get("/v1/workflows", params={"limit": 1000})).json()["data"]
    new = [each["id"] for each in listed if each["id"] not in (read or ())]
    if read is not None:
        read.update(new)
    return json.dumps([await api.record(id) for id in new])


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", sorted(kind.__name__ for kind in tree()))
async def test_no_error_shows_its_detail_to_a_caller(
    kind: str, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "podium")
    async with served(around(raising(kind, late=late), first_byte_s=10)) as api:
        bodies = await all_said(api)
        details = await records(api)
    assert "It went wrong." in bodies
    assert not [word for word in ("10.0.0.7:8443", KEY_ENV, '"detail"') if word in bodies]
    assert PLANTED in json.dumps(json.loads(details))
    logged = [JsonLines().format(record) for record in caplog.records]
    assert any(PLANTED in line and '"workflow' in line for line in logged)


FAULTS: dict[str, Answer] = {
    **{str(status): Answer(status=status, error=WORDS) for status in (400, 401, 402, 403, 404, 413, 418, 422, 500, 503)},
    "busy": Answer(status=429, error=WORDS, headers={"Retry-After": "0"}),
    "out of credit": Answer(status=429, error=WORDS, error_code="insufficient_quota"),
    "too long": Answer(status=400, error=f"{WORDS}: maximum context length is 5 tokens"),
    "in the stream": Answer(error_after=2, error=WORDS),
    "no such reason": Answer(finish="planted words of the provider"),
    "garbled": Answer(garble_after=2),
    "cut": Answer(cut_after=2),
    "silent": Answer(stall_after=1),
}  # fmt: skip


def at(kind: str, url: str, name: str = "faulty") -> Json:
    return {
        "name": name, "kind": kind, "model": "m", "base_url": url + ("/v1" if kind == "openai" else ""),
        "api_key_env": KEY_ENV, "retry": ONE_TRY, "stall_timeout_s": 1,
    }  # fmt: skip


@pytest.mark.parametrize("kind", WIRES)
async def test_no_provider_fault_shows_text_address_or_variable_to_a_caller(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "podium")
    async with serving(WIRES[kind]) as upstream:
        for leads in (False, True):
            conductor = at(kind, upstream.url, "conductor") | {"in_pool": False} if leads else None
            ways = [PLANNED | {"stream": True}] if leads else [PASSED_THROUGH, GUARDED]
            settings = around(at(kind, upstream.url), conductor=conductor, first_byte_s=0 if leads else 10)
            async with served(settings, {KEY_ENV: KEY}) as api:
                read = set[str]()
                for name, fault in FAULTS.items():
                    caplog.clear()
                    upstream.answers.extend([fault] * 100)
                    bodies = await all_said(api, ways)
                    upstream.answers.clear()
                    place = upstream.url.removeprefix("http://")
                    outcomes = [
                        word
                        for word in (place, KEY_ENV, KEY, WORDS, "base_url", "api_key_env")
                        if word in bodies
                    ]
                    assert not outcomes, (name, outcomes, bodies)
                    logged = "".join(JsonLines().format(record) for record in caplog.records)
                    details = await records(api, read)
                    assert KEY not in logged + details, name
                    if name == "cut":
                        continue  # a connection that broke in the middle of an answer has no words to record
                    clue = place if name in ("garbled", "silent") else WORDS
                    assert clue in logged, name
                    assert clue in details, name


async def test_an_unreachable_servers_address_is_shown_only_to_the_operator(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "podium")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{unused.getsockname()[1]}"
        for kind in WIRES:
            caplog.clear()
            async with served(
                around(at(kind, f"http://{place}") | {"stall_timeout_s": 10}, first_byte_s=0), {KEY_ENV: KEY}
            ) as api:
                bodies = await all_said(api)
                details = await records(api)
            assert place not in bodies
            assert "faulty cannot be reached" in bodies
            assert place in details
            assert place in "".join(JsonLines().format(record) for record in caplog.records)


BAD_NAMES: dict[str, Any] = {
    "a model": {"model": "nobody"},
    "a worker": {"podium": {"workers": ["nobody"]}},
    "a worker to leave out": {"podium": {"exclude_workers": ["nobody"]}},
    "a worker in a plan": {"podium": {"plan": [step("nobody")]}},
    "a worker that is not allowed": {"podium": {"plan": [step("zebra")], "workers": ["lion"]}},
}


@pytest.mark.parametrize("body", BAD_NAMES.values(), ids=BAD_NAMES)
async def test_an_error_about_an_unknown_name_does_not_list_all_names(body: Json) -> None:
    workers = [scripted("zebra"), scripted("lion"), scripted("otter")]
    async with served(team(workers=workers, workflows={})) as api:
        answer = await api.post(body)
        response = await api.http.get("/v1/models/nobody")
    assert answer.status_code in (400, 404)
    assert "otter" not in answer.text + response.text
    assert "/v1/models" in response.text


async def test_the_reason_for_a_fallback_does_not_reveal_the_pool() -> None:
    workers = [scripted("zebra"), scripted("lion"), scripted("otter")]
    async with served(team(plan(step("nobody")), workers=workers, workflows={})) as api:
        answer = await api.ok(trace=True)
        events = await api.events(progress="events")
    assert "unknown_worker" in answer["podium"]["fallback"]
    del answer["podium"]["steps"]
    assert "otter" not in json.dumps(answer) + json.dumps(events)


async def test_an_unexpected_error_is_shown_only_by_its_type(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "podium")
    # Raises an AttributeError in the worker's own code.
    faulty = raising("PodiumError") | {"options": {"kind": "no_such_error"}}
    async with served(around(faulty, first_byte_s=10)) as api:
        answer = await api.post({"model": "faulty"})
        details = await records(api)
    assert answer.json()["error"]["message"] == "Internal error: AttributeError."
    assert "no_such_error" not in answer.text
    assert "no_such_error" in details
    assert "no_such_error" in "".join(JsonLines().format(record) for record in caplog.records)
