"""Unknown workers, models and providers in policies and requests are rejected, because they would restrict nothing."""

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from podium import accounts_cli
from serving.health import Health
from serving.pool import build_pool
from serving.sessions.live_settings import LiveSettings
from serving.settings.settings import SettingsError, parse
from serving.settings.source import SettingsSource
from tests.serving.api.keyed import Keyed, keyed
from tests.serving.api.served import ASK, Json, scripted, served, step, team

CHAT = "/v1/chat/completions"
OPTIONAL: Json = {
    "name": "spare", "kind": "openai", "model": "m", "api_key_env": "PODIUM_TEST_NONE", "optional": True,
    "provider": "mistral", "region": "us",
}  # fmt: skip


def settings(*more: Json, without: str = "") -> Json:
    named = [
        scripted("coder", "A.", provider="acme", region="eu-central-1"),
        scripted("writer", "B."),
        OPTIONAL,
        *more,
    ]
    return team(
        workers=[each for each in named if each["name"] != without], workflows={"duo": [step("writer")]}
    )


UNKNOWN: list[tuple[str, str, str | None]] = [
    ("exclude_workers", "codder", "coder"),
    ("exclude_workers", "Coder", "coder"),
    ("exclude_workers", "zzz", None),
    ("exclude_workers", "mini", None),
    ("workers", "writr", "writer"),
    ("models", "mimi", "mini"),
    ("models", "dou", "duo"),
    ("models", "codder", "coder"),
    ("providers", "acmee", "acme"),
    ("providers", "opnai", "openai"),
    ("regions", "eu-centrl-1", "eu-central-1"),
]
POLICIES: list[Json] = [
    {"exclude_workers": ["coder", "spare"]},
    {"workers": ["writer", "conductor"]},
    {"models": ["mini", "duo", "coder"]},
    {"providers": ["acme", "scripted", "mistral"]},
    {"regions": ["eu-central-1", "us"]},
    {"workers": []},
    {"exclude_workers": [], "models": None},
]


@pytest.fixture
async def it(tmp_path: Path) -> Any:
    async with keyed(tmp_path, settings(scripted("api", "C.", provider="openai"))) as running:
        yield running


@pytest.mark.parametrize(("kind", "name"), [("keys", "mine"), ("teams", "search")])
async def test_a_policy_with_an_unknown_name_returns_400_with_a_suggestion(
    it: Keyed, kind: str, name: str
) -> None:
    path = f"/v1/admin/{kind}/{it.ids[name]}/policy"
    for field, unknown, suggestion in UNKNOWN:
        answer = await it.ask(
            "admin", "POST", path, {field: ["writer", unknown] if "workers" in field else [unknown]}
        )
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, field), answer.text
        assert error["message"].startswith(f"{field} contains ")
        assert repr(unknown) in error["message"]
        assert (f"Did you mean {suggestion!r}?" in error["message"]) is (suggestion is not None)
    assert (await it.ask("admin", "GET", path)).json()["policy"]["exclude_workers"] == []
    for policy in POLICIES:
        assert (await it.ask("admin", "POST", path, policy)).status_code == 200


async def test_a_denied_worker_is_rejected(it: Keyed) -> None:
    await it.ask("admin", "POST", f"/v1/admin/keys/{it.ids['mine']}/policy", {"exclude_workers": ["coder"]})
    assert (await it.ask("mine", "POST", CHAT, ASK | {"model": "coder"})).status_code == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"podium": {"exclude_workers": ["codder"]}}, "podium.exclude_workers"),
        ({"podium": {"workers": ["writer", "codder"]}}, "podium.workers"),
        ({"podium": {"plan": [step("writer"), step("codder")]}}, "podium.plan[1]"),
        ({"model": "codder"}, "model"),
        ({"model": "duo", "podium": {"exclude_workers": ["codder"]}}, "podium.exclude_workers"),
        ({"model": "writer", "podium": {"exclude_workers": ["codder"]}}, "podium.exclude_workers"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_with_an_unknown_name_gets_a_suggestion(body: Json, param: str, stream: bool) -> None:
    async with served(settings()) as api:
        answer = await api.post({"stream": stream} | body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (404 if param == "model" else 400, param)
    assert "Did you mean 'coder'?" in error["message"]


async def test_a_forbidden_worker_is_never_suggested(it: Keyed) -> None:
    await it.ask("admin", "POST", f"/v1/admin/keys/{it.ids['mine']}/policy", {"exclude_workers": ["coder"]})
    for body in (
        {"podium": {"exclude_workers": ["codder"]}},
        {"podium": {"workers": ["coder"]}},
        {"model": "codder"},
    ):
        assert "Did you mean" not in (await it.ask("mine", "POST", CHAT, ASK | body)).text


@pytest.mark.parametrize(
    "change",
    [
        {"models": {"mini": {"workers": ["codder"]}}},
        {"workflows": {"duo": [step("codder")]}},
        {"conductor": {"worker": "conductor", "fallback": "codder"}},
    ],
)
def test_settings_with_an_unknown_name_get_a_suggestion(change: Json) -> None:
    with pytest.raises(SettingsError, match="Did you mean 'coder'"):
        parse(settings() | change)


async def test_a_reload_that_removes_a_worker_flags_the_policies_that_name_it(
    it: Keyed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await it.ask("admin", "POST", f"/v1/admin/keys/{it.ids['mine']}/policy", {"exclude_workers": ["coder"]})
    await it.ask("admin", "POST", f"/v1/admin/teams/{it.ids['sales']}/policy", {"providers": ["acme"]})
    path, health = tmp_path / "settings.yaml", Health()
    path.write_text(yaml.safe_dump(settings()))
    follows = LiveSettings(
        it.api.service,
        parse(settings()),
        lambda new: build_pool(new, {}, {}, health),
        SettingsSource.of(path, None, None),
        find_policy_faults=it.directory.unknown_names,
    )
    follows.is_up = True
    path.write_text(yaml.safe_dump(settings(scripted("coder-2", "A."), without="coder")))
    with caplog.at_level(logging.WARNING, "podium"):
        await follows.reload()
    faults = it.api.service.policy_faults
    assert any(
        "key mine" in each and "'coder'" in each and "Did you mean 'coder-2'?" in each for each in faults
    )
    assert any("team sales" in each and "providers" in each and "'acme'" in each for each in faults)
    assert all(each in caplog.text for each in faults)
    report = (await it.ask("admin", "GET", "/readyz")).json()
    assert report["policies"] == faults
    assert "policies" not in (await it.ask("mine", "GET", "/readyz")).json()
    path.write_text(yaml.safe_dump(settings()))
    await follows.reload()
    assert it.api.service.policy_faults == []


def test_the_command_checks_names_against_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PODIUM_STORE_URL", f"sqlite:///{tmp_path / 'podium.db'}")
    for name in ("PODIUM_API_KEY", "PODIUM_URL"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(settings()))
    accounts_cli.keys(["create", "app"])
    policy = ["policy", "app", "exclude_workers=codder"]
    assert accounts_cli.keys([*policy, "--settings", str(path)]) == 1
    assert "Did you mean 'coder'?" in capsys.readouterr().err
    assert accounts_cli.keys(["policy", "app", "exclude_workers=coder", "--settings", str(path)]) == 0
    capsys.readouterr()
    assert accounts_cli.keys(policy) == 0
    assert "exclude_workers are not checked" in capsys.readouterr().err
