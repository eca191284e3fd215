"""Private folder and shared memory of a local server, without starting one."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from cluster.local import folder as folder_module
from cluster.local.folder import folders, make_folder, record_shared_memory, sweep_folders
from cluster.local.processes import ROOT, TAG
from cluster.local.shared_memory import remove_unused

HOLDS_MEMORY = """
import sys
from multiprocessing import shared_memory
segment = shared_memory.SharedMemory(create=True, size=4096)
print(segment._name, flush=True)
sys.stdin.read()
"""


def new_tag(port: int = 1) -> str:
    return f"{ROOT}:{port}:{uuid.uuid4().hex}"


@contextmanager
def holding_memory(tag: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Start a process that holds a shared memory segment, as an engine does."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS_MEMORY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {TAG: tag}, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    segment = Path("/dev/shm") / process.stdout.readline().strip().removeprefix("/")
    try:
        yield process, segment
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        segment.unlink(missing_ok=True)


def kill(process: subprocess.Popen[str]) -> None:
    """Kill the process group with Python's shared memory tracker, which would otherwise remove the segment."""
    group = [each for each in psutil.process_iter() if os.getpgid(each.pid) == process.pid]
    os.killpg(process.pid, signal.SIGSTOP)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not psutil.wait_procs(group, timeout=30)[1]


def test_the_folder_is_private_and_haproxys_longest_socket_path_fits() -> None:
    folder = make_folder(new_tag())
    try:
        assert folder.path.stat().st_mode & 0o777 == 0o700
        assert {Path(value).is_relative_to(folder.path) for value in folder.environment.values()} == {True}
        socket = Path(folder.environment["RAY_SERVE_HAPROXY_SOCKET_PATH"])
        longest = socket.parent / ("n" * 56) / f"{socket.name}.4194304.tmp"
        assert len(str(longest)) <= 107
    finally:
        folder.remove()
    assert not folder.path.exists()


def test_a_long_temporary_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = make_folder(new_tag())
    folder.remove()
    assert not folder.path.is_relative_to(tmp_path)


def test_only_the_servers_own_shared_memory_is_removed() -> None:
    folder = make_folder(new_tag())
    with holding_memory(folder.tag) as (ours, leftover), holding_memory("another") as (other, used):
        record_shared_memory(folder.path)
        kill(ours)
        kill(other)
        assert leftover.exists()
        folder.remove()
        assert (leftover.exists(), used.exists()) == (False, True)


def test_shared_memory_in_use_is_not_removed() -> None:
    folder = make_folder(new_tag())
    with holding_memory(folder.tag) as (_, segment):
        record_shared_memory(folder.path)
        folder.remove()
        assert segment.exists()


def test_only_a_killed_servers_folder_and_memory_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "ROOT", tmp_path)
    monkeypatch.setattr(folder_module, "DATA", tmp_path)
    dead, living = make_folder(f"{tmp_path}:7:dead"), make_folder(f"{tmp_path}:8:living")
    logs = dead.path / "ray" / "session_1" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("why")
    with holding_memory(dead.tag) as (process, segment):
        record_shared_memory(dead.path)
        dead._lock.close()
        assert sweep_folders() == 0, "its processes still run"
        kill(process)
        assert sweep_folders() == 1
        assert (segment.exists(), dead.path.exists(), living.path.exists()) == (False, False, True)
    assert (tmp_path / "build" / "serve-7.ray" / "raylet.out").read_text() == "why"
    assert list(folders()) == [living.path]
    living.remove()


def test_the_logs_of_the_last_failed_servers_remain(tmp_path: Path) -> None:
    for port in range(folder_module.MAX_KEPT_LOGS + 2):
        folder = make_folder(new_tag(port))
        (folder.path / "ray" / "session_1" / "logs").mkdir(parents=True)
        folder.remove(keep_logs=tmp_path / f"serve-{port}.ray")
        os.utime(tmp_path / f"serve-{port}.ray", (time.time(), port))
    assert {path.name for path in tmp_path.iterdir()} == {
        f"serve-{port}.ray" for port in range(2, folder_module.MAX_KEPT_LOGS + 2)
    }


def test_no_file_outside_shared_memory_is_removed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.touch()
    remove_unused({mine})
    assert mine.exists()
