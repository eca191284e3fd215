"""Find the shared memory files of a server's processes in /dev/shm, and remove those that no process uses.

vLLM's engines exchange messages through segments of hundreds of megabytes with random names (`psm_...`). One
of their libraries creates semaphores with the id of the process in the name (`sem.loky-<pid>-...`). Ray kills
engines when it stops, and then both remain. A file is never removed because of its name: only files that the
server's own processes had mapped or created are removed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import psutil

SHARED_MEMORY = "/dev/shm/"  # noqa: S108 (the kernel's name)


def segments_of(processes: Iterable[psutil.Process], since_s: float = 0.0) -> set[Path]:
    """Return this account's files in /dev/shm that `processes` have mapped or created since `since_s`."""
    paths = {path for process in processes for path in _mappings(process) | _semaphores(process)}
    ours: set[Path] = set()
    for path in paths:
        with contextlib.suppress(OSError):
            status = path.stat()
            if status.st_uid == os.getuid() and status.st_ctime >= since_s:
                ours.add(path)
    return ours


def remove_unused(segments: set[Path]) -> None:
    """Remove the files among `segments` that no running process has mapped or created."""
    existing = {path for path in segments if str(path.parent) + "/" == SHARED_MEMORY and path.exists()}
    if existing:
        for path in existing - segments_of(psutil.process_iter()):
            path.unlink(missing_ok=True)


def _mappings(process: psutil.Process) -> set[Path]:
    """Return the files in /dev/shm that a process has mapped, from the last field of `/proc/PID/maps`."""
    try:
        lines = Path(f"/proc/{process.pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    files = [line[line.index(" " + SHARED_MEMORY) + 1 :] for line in lines if " " + SHARED_MEMORY in line]
    return {Path(file) for file in files if not file.endswith(" (deleted)")}


def _semaphores(process: psutil.Process) -> set[Path]:
    return set(Path(SHARED_MEMORY).glob(f"sem.*-{process.pid}-*"))
