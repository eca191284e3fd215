"""Two loopback servers that the tests of this folder share: one behind Serve's own proxy, one behind HAProxy.
`test_secrets.py`, the last file of the folder, looks for secrets from their environments.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from anyio.from_thread import start_blocking_portal

from cluster.local.server import Server
from loadtest.rig.ray_server import production_environment
from loadtest.siege.servers import settings_text
from tests import secrets
from tests.conftest import ROOT
from tests.wires.openai import OpenAIWire
from tests.wires.server import WireServer, serving

STREAM_S = 4.0
HEADER_S = 3
"""Seconds for the header of a request: enough to open 300 connections and to send the first bytes of ten on a slow
machine.
"""
PAGE = "https://app.example.com"
FULL = {"name": "full", "kind": "scripted", "replies": ["Because."], "delay_s": 1, "max_concurrency": 1, "max_wait_s": 0.2, "retry": {"attempts": 1}}  # fmt: skip


@dataclass(frozen=True)
class Proxied:
    server: Server
    settings: Path
    upstream: WireServer
    planted: dict[str, str]
    began_s: float
    fast: bool

    @property
    def url(self) -> str:
        return self.server.url


def settings_for(upstream: str) -> dict[str, object]:
    """Return the scripted team, the workers of a siege, one provider that answers and two that are unreachable."""
    settings = yaml.safe_load((ROOT / "cluster/scripted.yaml").read_text())
    siege = yaml.safe_load(settings_text(STREAM_S))
    settings["workers"] += [
        *siege["workers"],
        FULL,
        {"name": "gpt", "kind": "openai", "model": "m", "api_key_env": "OPENAI_API_KEY", "base_url": f"{upstream}/v1"},
        {"name": "claude", "kind": "anthropic", "model": "m", "api_key_env": "ANTHROPIC_API_KEY", "base_url": "http://127.0.0.1:1"},
        {"name": "gemini", "kind": "gemini", "model": "m", "api_key_env": "GEMINI_API_KEY", "base_url": "http://127.0.0.1:1"},
    ]  # fmt: skip
    for worker in settings["workers"][-3:]:
        worker["in_pool"] = False
    return settings | {
        "router": siege["router"],
        "http": {"header_s": HEADER_S, "stall_s": 1, "origins": [PAGE]},
    }


def running(folder: Path, fast: bool) -> Iterator[Proxied]:
    began_s, planted, settings = secrets.now_s(), secrets.planted(), folder / "settings.yaml"
    env = planted | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    if fast:
        env |= production_environment() | {"PODIUM_HAPROXY_HEADER_S": str(HEADER_S)}
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serving(OpenAIWire())) as upstream,
    ):
        settings.write_text(yaml.safe_dump(settings_for(upstream.url)))
        with Server(settings=settings, port=0, dashboard_port=0, env=env) as server:
            yield Proxied(server, settings, upstream, planted, began_s, fast)


@pytest.fixture(scope="session")
def behind_serves_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    yield from running(tmp_path_factory.mktemp("serve"), fast=False)


@pytest.fixture(scope="session")
def behind_haproxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    yield from running(tmp_path_factory.mktemp("haproxy"), fast=True)


@pytest.fixture(params=["serves_proxy", "haproxy"])
def proxied(request: pytest.FixtureRequest) -> Proxied:
    return request.getfixturevalue(f"behind_{request.param}")
