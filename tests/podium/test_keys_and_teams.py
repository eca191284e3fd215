"""`podium keys` and `podium teams` on a real store."""

import asyncio
import json
import stat
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from podium import accounts_cli, ledger_cli
from serving.accounts.keys import ApiKey
from tests.serving.api.keyed import keyed
from tests.serving.api.served import ASK


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str


Podium = Callable[..., CommandResult]


@pytest.fixture
def podium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Podium:
    """Return a function that calls a verb on a new store."""
    monkeypatch.setenv("PODIUM_STORE_URL", f"sqlite:///{tmp_path / 'data' / 'podium.db'}")
    for name in ("PODIUM_API_KEY", "PODIUM_URL"):
        monkeypatch.delenv(name, raising=False)

    def call(verb: str, *arguments: str) -> CommandResult:
        code = {"keys": accounts_cli.keys, "teams": accounts_cli.teams}[verb](arguments)
        output = capsys.readouterr()
        return CommandResult(code, output.out, output.err)

    return call


def list_keys(podium: Podium, *options: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in podium("keys", "list", "--json", *options).out.splitlines()]


def test_a_created_key_is_printed_once_on_standard_output(podium: Podium, tmp_path: Path) -> None:
    result = podium("keys", "create", "app")
    key = ApiKey(result.out.strip())
    assert result.code == 0
    for output in (result.err, *podium("keys", "list")[1:], *podium("keys", "revoke", "app")[1:]):
        assert key.reveal() not in output
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and key.reveal().encode() in path.read_bytes()]  # fmt: skip


def test_a_key_is_created_listed_rotated_and_revoked(podium: Podium) -> None:
    assert podium("teams", "create", "search").code == 0
    first = podium("keys", "create", "app", "--team", "search", "--scopes", "run", "--expires", "90d").out
    (row,) = list_keys(podium)
    assert (row["team"], row["scopes"], row["state"]) == ("search", "run", "active")
    assert row["hint"] == f"…{first.strip()[-4:]}"
    second = podium("keys", "rotate", "app", "--overlap", "1h")
    assert second.out != first
    assert "stays valid until" in second.err
    assert list_keys(podium)[0]["id"] == row["id"]
    assert "Servers apply this" in podium("keys", "edit", "app", "--scopes", "read,run").out
    (edited,) = list_keys(podium)
    assert edited == row | {"scopes": "run,read", "hint": edited["hint"]}
    assert "It never expires" in podium("keys", "edit", "app", "--expires", "never").out
    assert list_keys(podium) == [edited | {"expires": "never"}]
    assert "Servers reject it within 10 s" in podium("keys", "revoke", row["id"]).out
    assert list_keys(podium) == []
    assert list_keys(podium, "--all")[0]["state"] == "revoked"
    podium("teams", "disable", "search")
    assert '"state": "disabled"' in podium("teams", "list", "--json").out


def test_a_budget_is_set_shown_and_removed(podium: Podium) -> None:
    podium("teams", "create", "search")
    podium("keys", "create", "app", "--team", "search")
    for verb, name in (("teams", "search"), ("keys", "app")):
        podium(verb, "budget", name, "--per-day", "2.50", "--per-month", "40")
        shown = podium(verb, "budget", name, "--per-day", "none", "--json").out.splitlines()
        assert [(row["period"], row["limit_usd"]) for row in map(json.loads, shown)] == [("day", "none"), ("month", "40")]  # fmt: skip


def test_an_empty_list_names_the_create_command_and_makes_no_file(podium: Podium, tmp_path: Path) -> None:
    listed = podium("keys", "list").out
    assert listed.startswith("No keys exist yet. Create one with `podium keys create NAME`. (the store ")
    assert "podium teams create NAME" in podium("teams", "list").out
    assert list(tmp_path.iterdir()) == []


def test_using_the_store_instead_of_an_unreachable_server_is_reported(
    podium: Podium, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert podium("teams", "create", "search").err == ""
    monkeypatch.setenv("PODIUM_URL", "http://127.0.0.1:9")
    result = podium("teams", "disable", "search")
    assert (result.code, "Using the store" in result.err, "PODIUM_API_KEY" in result.err) == (0, True, True)


def test_the_settings_files_store_is_used_and_private_to_its_owner(
    podium: Podium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PODIUM_STORE_URL")
    settings = tmp_path / "settings.yaml"
    path = tmp_path / "elsewhere" / "keys.db"
    worker = {"name": "a", "kind": "scripted"}
    settings.write_text(yaml.safe_dump({"workers": [worker], "store": {"path": str(path)}}))
    assert podium("keys", "create", "app", "--settings", str(settings)).code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "app" in podium("keys", "list", "--settings", str(settings)).out


async def test_with_a_url_the_commands_change_the_servers_teams_and_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PODIUM_STORE_URL", "sqlite:////absent/podium.db")

    async def podium(verb: str, *arguments: str) -> CommandResult:
        ask = {"keys": accounts_cli.keys, "teams": accounts_cli.teams}[verb]
        code = await asyncio.to_thread(ask, [*arguments, "--url", it.api.url])
        output = capsys.readouterr()
        return CommandResult(code, output.out, output.err)

    async with keyed(tmp_path) as it:
        monkeypatch.setenv("PODIUM_API_KEY", it.secrets["admin"])
        assert "Created team 'growth'" in (await podium("teams", "create", "growth")).out
        secret = (await podium("keys", "create", "app", "--team", "growth", "--expires", "90d")).out.strip()
        headers = {"authorization": f"Bearer {secret}"}
        assert (await it.api.http.get("/v1/models", headers=headers)).status_code == 200
        for verb, name in (("teams", "growth"), ("keys", "app")):
            shown = (await podium(verb, "budget", name, "--per-day", "5", "--json")).out.splitlines()
            assert [json.loads(line)["limit_usd"] for line in shown] == ["5", "none"]
            answer = json.loads((await podium(verb, "policy", name, "max_cost_usd=0.5", "--json")).out)
            assert answer == {"max_cost_usd": "0.5"}
            assert json.loads((await podium(verb, "policy", name, "max_cost_usd=none", "--json")).out) == {}
        listed = (await podium("keys", "list", "--team", "growth", "--json")).out.splitlines()
        assert [(json.loads(line)["name"], json.loads(line)["scopes"]) for line in listed] == [("app", "run,read")]  # fmt: skip
        monkeypatch.setenv("PODIUM_URL", it.api.url)
        await asyncio.to_thread(accounts_cli.keys, ["list", "--team", "growth", "--json"])
        assert capsys.readouterr().out.splitlines() == listed, "the variables name the server too"
        assert await asyncio.to_thread(accounts_cli.keys, ["list", "--url", "http://127.0.0.1:9", "--settings", "a.yaml"]) == 1  # fmt: skip
        assert "--url and --settings" in capsys.readouterr().err
        await podium("teams", "create", it.ids["search"])  # a team whose name is the id of another team
        await podium("teams", "budget", it.ids["search"], "--per-day", "7")
        answer = (await it.ask("admin", "GET", f"/v1/admin/teams/{it.ids['search']}/budget")).json()
        assert answer["day"]["limit_usd"] == "7"
        edited = (await podium("keys", "edit", "app", "--scopes", "read", "--expires", "never")).out
        assert ("scopes read" in edited, "It never expires" in edited) == (True, True)
        assert (await it.api.http.get("/v1/workflows", headers=headers)).status_code == 200
        rotated = ApiKey((await podium("keys", "rotate", "app")).out.strip())
        await podium("teams", "disable", "growth")
        assert '"state": "disabled"' in (await podium("teams", "list", "--json")).out
        await it.ask("mine", "POST", "/v1/chat/completions", ASK)

        async def billed() -> list[str]:
            show = ["show", "--json", "--team", "search", "--url", it.api.url]
            assert await asyncio.to_thread(ledger_cli.main, show) == 0, capsys.readouterr().err
            lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            return [line["worker"] for line in lines if Decimal(line["cost_usd"])]

        async with asyncio.timeout(10):  # the bill may be written after the answer
            while await billed() != ["b", "a"]:
                await asyncio.sleep(0.01)
        assert await asyncio.to_thread(ledger_cli.main, ["show", "--url", it.api.url]) == 0
        assert "dollars" in capsys.readouterr().out
        assert "Revoked key 'app'" in (await podium("keys", "revoke", "app")).out
        refused = await podium("teams", "budget", "nobody")
        assert (refused.code, "nobody" in refused.err, rotated.reveal() == secret) == (1, True, False)
        monkeypatch.setenv("PODIUM_API_KEY", it.secrets["mine"])
        assert (await podium("teams", "list")).code == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["revoke", "nobody"], "No active key is named 'nobody'"),
        (["create", "app", "--team", "nobody"], "No team has the id or name 'nobody'"),
        (["create", " "], "name must have"),
        (["edit", "nobody", "--scopes", "run"], "No active key is named 'nobody'"),
        (["edit", "app"], "Nothing to change"),
        (["list", "--settings", "nowhere.yaml"], "nowhere.yaml cannot be read"),
    ],
)
def test_an_invalid_key_command_is_reported_without_a_traceback(
    podium: Podium, arguments: list[str], message: str
) -> None:
    failed = podium("keys", *arguments)
    assert failed.code in (1, 2)
    assert message in failed.err
    assert failed.out == ""


@pytest.mark.parametrize("option", ["--scopes=fly", "--expires=soon", "--expires=0d", "--expires=9999999w"])
def test_an_invalid_option_is_an_error(podium: Podium, option: str) -> None:
    with pytest.raises(SystemExit):
        podium("keys", "create", "app", option)


def test_a_password_in_an_address_is_in_no_message(podium: Podium, monkeypatch: pytest.MonkeyPatch) -> None:
    """The three faults: an unreachable database, an unknown kind, and an address without a database name."""
    for url in ("postgresql://u:planted-5f2@127.0.0.1:1/d", "mysql://u:planted-5f2@h/d", "postgresql://u:planted-5f2@"):  # fmt: skip
        monkeypatch.setenv("PODIUM_STORE_URL", url)
        failed = podium("keys", "create", "app")
        assert failed.code == 1
        assert "planted-5f2" not in failed.out + failed.err
        assert failed.err.count("\n") == 1, "and so no traceback"


def test_a_policy_is_set_shown_and_removed(podium: Podium) -> None:
    podium("teams", "create", "search")
    podium("keys", "create", "app", "--team", "search")
    for verb, name in (("teams", "search"), ("keys", "app")):
        podium(
            verb,
            "policy",
            name,
            "models=mini,ultra",
            "local_only=true",
            "max_cost_usd=0.50",
            "max_effort=none",
            "tools=none",
        )
        shown = json.loads(podium(verb, "policy", name, "max_cost_usd=any", "models=none", "--json").out)
        assert shown == {"local_only": True, "max_effort": "none", "tools": []}
        shown = json.loads(podium(verb, "policy", name, "tools=clock,crm.look_up", "--json").out)
        assert sorted(shown["tools"]) == ["clock", "crm.look_up"]
        podium(verb, "policy", name, "max_effort=any", "local_only=any", "tools=any")
        lines = podium(verb, "policy", name).out.splitlines()
        assert [line.split()[1] for line in lines] == ["-"] * len(lines)
        assert any(
            line.startswith("tokens_per_minute") and "input and output tokens" in line for line in lines
        )


@pytest.mark.parametrize(("field", "message"), [("max_stepz=1", "is not a valid policy change"), ("max_steps", "is not a valid policy change"), ("max_steps=many", "max_steps:"), ("max_cost_usd=-1", "max_cost_usd:")])  # fmt: skip
def test_an_invalid_policy_is_rejected_with_its_field(podium: Podium, field: str, message: str) -> None:
    podium("teams", "create", "search")
    refused = podium("teams", "policy", "search", field)
    assert refused.code == 1
    assert message in refused.err
