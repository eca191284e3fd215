"""Set-up builds the web console. If it cannot, it prints why and continues. tests/console/browser.py covers builds
that need the npm registry.
"""

import json
from pathlib import Path

import pytest

from cluster.local import console
from cluster.local.command import SetupError
from tests.clients import run_agents
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a separate build folder, an unreachable registry and no package cache."""
    for name, path in {"SOURCE": "source", "BUILT": "console", "WORK": "work", "STAMP": "console/source.sha256", "FAILED": "console.failed", "LOG": "console.log"}.items():  # fmt: skip
        monkeypatch.setattr(console, name, tmp_path / path)
    (tmp_path / "source").mkdir()
    for name in ("package.json", "package-lock.json"):
        (tmp_path / "source" / name).write_bytes((ROOT / "console" / name).read_bytes())
    monkeypatch.setattr(console, "ROOT", tmp_path)
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    return tmp_path


def no_node() -> None:
    raise SetupError("The package index cannot be reached.\nMore about it.")


def test_without_the_registry_the_build_reports_the_cause_and_the_retry_command(elsewhere: Path) -> None:
    message = console.build()
    assert message.startswith("The web console could not be built, because `npm ci` failed. See console.log.")
    assert "Run `make console` to try again" in message
    assert (elsewhere / "console.log").read_text()
    assert not console.is_built()
    assert console.has_failed()


def test_a_failed_build_is_not_retried_until_the_source_changes(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for message in ("The package index cannot be reached. Run `make console` to try again.", "its last build failed. Run `make console` to try again."):  # fmt: skip
        with console.building(no_node, is_needed=True):
            pass
        out = capsys.readouterr().out
        assert message in out
        assert out.count("\n") == 1
    (elsewhere / "source" / "index.html").write_text("<!doctype html>")
    assert not console.has_failed()


def test_nothing_is_installed_if_the_console_is_built_or_not_needed() -> None:
    with console.building(no_node, is_needed=False):
        pass
    console.BUILT.mkdir()
    console.STAMP.write_text(console.source_state())
    with console.building(no_node, is_needed=True):
        pass
    assert not console.FAILED.exists()


def test_the_state_of_the_source_ignores_files_of_npm(elsewhere: Path) -> None:
    state = console.source_state()
    (elsewhere / "source" / "node_modules").mkdir()
    (elsewhere / "source" / "node_modules" / "x.js").write_text("x")
    assert console.source_state() == state
    (elsewhere / "source" / "package.json").write_text("{}")
    assert console.source_state() != state


def with_a_script(folder: Path) -> Path:
    """Write an npm project without packages. Return the file that its post-install script creates."""
    ran = folder / "ran"
    scripts = {"postinstall": f"touch {ran}", "build": "mkdir dist"}
    project = {"name": "x", "version": "1.0.0", "scripts": scripts}
    (folder / "package.json").write_text(json.dumps(project))
    lock = {
        "name": "x",
        "version": "1.0.0",
        "lockfileVersion": 3,
        "packages": {"": {"hasInstallScript": True}},
    }
    (folder / "package-lock.json").write_text(json.dumps(lock))
    return ran


def test_the_console_is_built_without_running_the_scripts_of_packages(elsewhere: Path) -> None:
    ran = with_a_script(elsewhere / "source")
    assert console.build() == ""
    assert console.is_built()
    assert not ran.exists()


def test_clients_are_installed_without_running_the_scripts_of_packages(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "locks" / "x").mkdir(parents=True)
    ran = with_a_script(elsewhere / "locks" / "x")
    monkeypatch.setattr(run_agents, "LOCKS", elsewhere / "locks")
    monkeypatch.setattr(run_agents, "BUILD", elsewhere / "build")
    assert run_agents.install("x") == ""
    assert (elsewhere / "build" / "x" / "installed.txt").exists()
    assert not ran.exists()


@pytest.mark.parametrize("folder", [ROOT / "console", *sorted((ROOT / "tests/clients/locks").iterdir())])
def test_an_npm_lock_has_exact_versions_with_hashes_and_no_registry(folder: Path) -> None:
    lock = json.loads((folder / "package-lock.json").read_text())
    project = json.loads((folder / "package.json").read_text())
    for name, package in lock["packages"].items():
        assert not name or (package["integrity"].startswith("sha512-") and "resolved" not in package)
    dependencies = project.get("dependencies", {}) | project.get("devDependencies", {})
    assert dependencies
    for name, version in dependencies.items():
        assert lock["packages"][f"node_modules/{name}"]["version"] == version
