"""Secrets of keys, valid or not, appear in no log, error, record or span, and reach no provider."""

import hashlib
import json
import logging
from pathlib import Path

import pytest

from serving.accounts.replica_store import ReplicaStore
from serving.database.address import parse_address
from serving.telemetry.logs import JsonLines
from tests.serving.api.keyed import keyed
from tests.serving.api.served import ASK, scripted, team
from tests.serving.spans import SPANS
from tests.wires.openai import OpenAIWire
from tests.wires.server import serving

CHAT = "/v1/chat/completions"


async def test_keys_and_hashes_appear_in_no_log_error_record_span_or_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("sqlalchemy", "uvicorn", "podium"):  # these do not inherit the level of the root
        caplog.set_level(logging.DEBUG, name)
    texts: list[str] = []
    async with serving(OpenAIWire()) as upstream:
        api_worker = {"name": "gpt", "kind": "openai", "model": "m", "api_key_env": "K", "base_url": f"{upstream.url}/v1"}  # fmt: skip
        settings = team(workers=[scripted("a"), api_worker], workflows={}, telemetry={"content": True})
        async with keyed(tmp_path, settings, K="a-provider's-own") as it:
            for who in it.secrets:
                for method, path, body in (
                    ("POST", CHAT, ASK | {"model": "gpt"}),
                    ("POST", CHAT, ASK | {"model": "gpt", "stream": True}),
                    ("POST", CHAT, ASK | {"model": "nobody"}),
                    ("POST", CHAT, {"messages": 1}),
                    ("POST", "/v1/plans", ASK),
                    ("GET", "/v1/workflows?limit=100", None),
                    ("GET", "/v1/admin/keys", None),
                    ("POST", "/v1/admin/keys", {"name": "x", "scopes": ["fly"]}),
                    ("DELETE", "/v1/admin/keys/key_0", None),
                ):
                    answer = await it.ask(who, method, path, body)
                    texts.append(f"{answer.headers}{answer.text}")
                both = it.headers(who) | {"x-api-key": it.secrets["mine"]}
                texts.append((await it.api.http.get("/v1/models", headers=both)).text)
            key = (await it.ask("admin", "POST", "/v1/admin/keys", {"name": "new"})).json()
            rotated = (await it.ask("admin", "POST", f"/v1/admin/keys/{key['id']}/rotate", {"overlap_s": 9})).json()  # fmt: skip
            texts.append((await it.ask("admin", "GET", f"/v1/admin/keys/{key['id']}")).text)
            secrets = {*it.secrets.values(), key["secret"], rotated["secret"]}
    texts += [JsonLines().format(record) for record in caplog.records]
    texts += [json.dumps(dict(span.attributes or {}), default=str) + str(span.events) for span in SPANS.ended]
    texts += [str(request) for request in upstream.requests]
    assert len(upstream.requests) >= 2
    assert {record.name for record in caplog.records} >= {"podium", "sqlalchemy.engine.Engine"}
    for secret in secrets:
        for form in (secret, secret[3:-6], hashlib.sha256(secret.encode()).hexdigest()):
            assert not [text[:200] for text in texts if form in text]


async def test_an_unavailable_store_returns_503_without_address_or_password(tmp_path: Path) -> None:
    address = parse_address("postgresql://podium:planted-5f2@127.0.0.1:1/podium")
    assert "planted" not in repr(address)
    async with keyed(tmp_path) as it:
        it.directory._store = ReplicaStore(address)
        for path in ("/v1/models", CHAT):
            answer = await it.ask("mine", "GET", path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
            assert answer.headers["retry-after"]
            assert "127.0.0.1" not in answer.text
            assert "planted" not in answer.text
        assert (await it.api.http.get("/healthz")).status_code == 200
        assert (await it.api.http.get("/readyz")).json() == {"status": "ready"}
