"""Contents of the wheel, and `podium serve` from it without the checkout."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

from cluster.local import wheel
from cluster.local.processes import free_port
from podium.cli import OURS
from serving.database.migrate import newest_version, only_adds
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NOT_IN_IT = {"Dockerfile", "ray.Dockerfile", "LICENSE", "env.example"}
"""Files in the packages' folders that a server does not read."""


def tracked(folder: str) -> list[Path]:
    command = ["git", "ls-files", "-co", "--exclude-standard", folder]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(line) for line in listed.splitlines() if (ROOT / line).is_file()]


def test_every_file_of_the_packages_is_in_the_wheel() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    files = [path for name in wheel.PACKAGES for path in tracked(name) if path.suffix != ".py"]
    assert [
        str(path)
        for path in files
        if not any(fnmatch(path.name, each) for each in patterns) and path.name not in NOT_IN_IT
    ] == []
    assert set(wheel.PACKAGES) == OURS


def test_the_changelog_starts_with_the_current_version_and_schema() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    titles = re.findall(r"^## (\S+)", text, re.MULTILINE)
    assert titles[0] == PROJECT["project"]["version"]
    assert len(set(titles)) == len(titles)
    now, before = re.findall(r"Schema of the store: (\d+)\. ?(.*)", text)[:2]
    assert now[0] == newest_version()
    assert ("may keep running" in now[1]) == only_adds(before[0], now[0])


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the wheel, with a console of one page."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("console", "stage", "out", "site"):
        (folder / name).mkdir()
    (folder / "console" / "index.html").write_text("<title>Podium</title>")
    wheel.stage(folder / "stage", folder / "console")
    build = "from setuptools.build_meta import build_wheel; import sys; build_wheel(sys.argv[1])"
    command = [sys.executable, "-c", build, str(folder / "out")]
    ended = subprocess.run(command, cwd=folder / "stage", capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    (built,) = (folder / "out").glob("podium-*.whl")
    with zipfile.ZipFile(built) as archive:
        for member in archive.infolist():
            path = Path(archive.extract(member, folder / "site"))
            path.chmod(0o755 if member.external_attr >> 16 & 0o111 else 0o644)  # as pip does
    return folder / "site"


def environment(site: Path, home: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(site), "XDG_DATA_HOME": str(home), "HOME": str(home)}


LOOK = """
import os, json
import serving
from pathlib import Path
from cluster.local import command, conductor_model, environment, model
from serving.api.console import FOLDER
print(json.dumps({
    "checkout": serving.IS_CHECKOUT,
    "settings": [serving.resolve_path(Path(f"cluster/{name}.yaml")).is_file() for name in ("local", "api", "gpu")],
    "console": (FOLDER / "index.html").is_file(),
    "proxy": os.access(environment.GUARD, os.X_OK),
    "adapter": (conductor_model.default_adapter() / "adapter_model.safetensors").is_file(),
    "written": [str(command.BUILD), str(model.FOLDER.parent)],
}))
"""


@pytest.mark.slow
def test_an_installed_podium_finds_its_files_and_writes_to_the_users_folder(
    installed: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", LOOK]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment(installed, tmp_path), capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "checkout": False,
        "settings": [True] * 3,
        "console": True,
        "proxy": True,
        "adapter": True,
        "written": [str(tmp_path / "podium" / name) for name in ("build", "models")],
    }


@pytest.mark.slow
def test_podium_serves_from_the_wheel_with_settings_of_the_working_folder(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text((ROOT / "cluster" / "scripted.yaml").read_text())
    serve = [sys.executable, "-m", "podium.cli", "serve", "--settings", "mine.yaml"]
    with subprocess.Popen(
        [*serve, "--port", str(free_port())],
        cwd=tmp_path,
        env=environment(installed, tmp_path) | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        assert server.stdout
        try:
            lines: list[str] = []
            for line in server.stdout:
                lines.append(line)
                if "Store of keys" in line:
                    break
        finally:
            server.terminate()
            server.wait(60)
    text = "".join(lines)
    assert "Podium is ready" in text, text
    assert "Web console: http" in text, text
    assert str(tmp_path / "podium" / "podium.db") in text
