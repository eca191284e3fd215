"""Private folder for the temporary files of a local server.

The folder contains Ray's session with its logs and sockets, HAProxy's configuration and sockets, vLLM's
sockets and other temporary files. Only this account can read it (mode 0700). It is removed when the server
has ended, but the logs of a server that failed are kept. A running `Server` locks its folder, so a folder
without a lock belongs to a server that was killed (docs/decisions/0015).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from cluster.local.processes import ROOT, processes_of
from cluster.local.shared_memory import remove_unused, segments_of

PREFIX = "podium-"
SHORT_PARENT = "/tmp"  # noqa: S108 (the folder in it is made by mkdtemp)
MAX_PARENT_CHARS = 8
"""Maximum length of the parent folder's path, in characters.

HAProxy binds `FOLDER/h/<node id, 56 characters>/admin.sock.<pid>.tmp`, and a Unix socket's path has at most
107 characters.
"""
MAX_KEPT_LOGS = 5
"""Number of failed servers whose logs are kept. Older logs are removed."""
LOCK, TAG_FILE, SEGMENTS = "lock", "tag", "shared_memory"


class ServerFolder:
    """Folder of one server, locked by the process that created it or took it over."""

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self.tag = (path / TAG_FILE).read_text()
        self._lock = lock

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that make the processes of the server write to this folder."""
        haproxy = self.path / "h"
        return {
            "TMPDIR": str(self.path),
            "RAY_TMPDIR": str(self.path),
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(haproxy / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(haproxy / "admin.sock"),
            "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(haproxy / "metrics.sock"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(haproxy),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(haproxy / "server-state"),
        }

    @property
    def has_logs(self) -> bool:
        return any(self.path.glob("ray/session_*/logs"))

    def remove(self, keep_logs: Path | None = None) -> None:
        """Remove the folder and shared memory that remained. Ray's logs are moved to `keep_logs`, if any."""
        if keep_logs is not None and self.has_logs:
            _keep(next(self.path.glob("ray/session_*/logs")), keep_logs)
        remove_unused(_segments(self.path))
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def make_folder(tag: str) -> ServerFolder:
    """Create and lock a folder for the server with this tag, which identifies its processes."""
    default = tempfile.gettempdir()
    parent = default if len(default) <= MAX_PARENT_CHARS else SHORT_PARENT
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    lock = _lock(path / LOCK)
    assert lock is not None, "no other process knows the new folder"
    (path / TAG_FILE).write_text(tag)
    return ServerFolder(path, lock)


def record_shared_memory(path: Path) -> None:
    """Write a list of the server's shared memory segments to its folder, so that they can be removed later."""
    with contextlib.suppress(OSError):  # the server may have just ended and removed its folder
        tag, started_s = (path / TAG_FILE).read_text(), (path / TAG_FILE).stat().st_mtime
        mapped = segments_of(processes_of(tag), started_s) | _segments(path)
        (path / SEGMENTS).write_text("\n".join(map(str, sorted(mapped))))


def sweep_folders() -> int:
    """Remove folders and shared memory of this checkout's killed servers, and return their number. Ray's logs
    are moved to `build/`.
    """
    swept = 0
    for path in folders():
        lock = _lock(path / LOCK)
        if lock is None:
            continue
        folder = ServerFolder(path, lock)
        if processes_of(folder.tag):
            lock.close()
            continue
        port = folder.tag.removeprefix(f"{ROOT}:").split(":")[0]
        folder.remove(keep_logs=ROOT / "build" / f"serve-{port}.ray")
        swept += 1
    return swept


def folders() -> Iterator[Path]:
    """Yield the folders of this checkout's servers, including servers that were killed."""
    for parent in {tempfile.gettempdir(), SHORT_PARENT}:
        for path in Path(parent).glob(f"{PREFIX}????????"):
            with contextlib.suppress(OSError):
                is_ours = path.stat().st_uid == os.getuid() and not path.is_symlink()
                if is_ours and (path / TAG_FILE).read_text().startswith(f"{ROOT}:"):
                    yield path


def _lock(path: Path) -> IO[str] | None:
    """Open and lock the file at `path`, or return None if it is locked or no longer exists."""
    try:
        file = path.open("a")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None
    return file


def _segments(path: Path) -> set[Path]:
    try:
        return {Path(line) for line in (path / SEGMENTS).read_text().splitlines()}
    except OSError:
        return set()


def _keep(logs: Path, to: Path) -> None:
    """Move the folder `logs` to `to`, replacing an older one there. Keep only the newest of these folders."""
    shutil.rmtree(to, ignore_errors=True)
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(logs, to)
    to.chmod(0o700)
    folders = sorted(to.parent.glob("*.ray"), key=lambda folder: folder.stat().st_mtime)
    for old in folders[:-MAX_KEPT_LOGS]:
        shutil.rmtree(old, ignore_errors=True)
