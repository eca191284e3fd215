"""A server that is reachable from other machines serves no request until a key exists."""

from pathlib import Path

import pytest
import typer

from cluster.local.exposure import require_key
from podium.accounts_cli import keys
from podium.command_line.options import parse_address
from serving.settings.settings import SettingsError

SCRIPTED = "cluster/scripted.yaml"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3"])
def test_an_address_beyond_loopback_requires_a_key_and_names_the_command(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'podium.db'}"
    monkeypatch.setenv("PODIUM_STORE_URL", url)
    with pytest.raises(SettingsError) as refused:
        require_key(host, SCRIPTED, {"PODIUM_STORE_URL": url})
    assert f"podium keys create NAME --scopes admin --settings {SCRIPTED}" in refused.value.message
    assert list(tmp_path.iterdir()) == []
    assert keys(["create", "boss", "--scopes", "admin", "--settings", SCRIPTED]) == 0
    require_key(host, SCRIPTED, {"PODIUM_STORE_URL": url})
    assert keys(["revoke", "boss"]) == 0
    require_key(host, SCRIPTED, {"PODIUM_STORE_URL": url})
    assert capsys.readouterr().out


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "127.0.0.2"])
def test_a_loopback_address_requires_no_key(host: str, tmp_path: Path) -> None:
    require_key(host, SCRIPTED, {"PODIUM_STORE_URL": f"sqlite:///{tmp_path / 'podium.db'}"})


@pytest.mark.parametrize("text", ["localhost", "example.com", "10.1.2", "0"])
def test_a_host_name_is_not_an_ip_address(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="not an IP address"):
        parse_address(text)
