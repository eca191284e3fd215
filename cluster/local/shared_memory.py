"""Which files in /dev/shm belong to processes, and their removal once nobody uses them.

vLLM's engines pass their messages through segments of hundreds of megabytes under random names (`psm_...`),
and one of their libraries makes semaphores with their process's id in the name (`sem.loky-<pid>-...`). An
engine that is killed, as Ray does when it stops, leaves both. Names decide nothing: only what a server's own
processes had mapped or made is removed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import psutil

SHARED_MEMORY = "/dev/shm/"  # noqa: S108 (the kernel's name)


def segments_of(processes: Iterable[psutil.Process], since_s: float = 0.0) -> set[Path]:
    """Files in /dev/shm that `processes` have mapped or made, that belong to this account and are not older
    than `since_s`.
    """
    found = {path for process in processes for path in _mappings(process) | _semaphores(process)}
    ours: set[Path] = set()
    for path in found:
        with contextlib.suppress(OSError):
            status = path.stat()
            if status.st_uid == os.getuid() and status.st_ctime >= since_s:
                ours.add(path)
    return ours


def remove_unused(segments: set[Path]) -> None:
    """Remove those of `segments` that no living process has mapped or made."""
    there = {path for path in segments if str(path.parent) + "/" == SHARED_MEMORY and path.exists()}
    if there:
        for path in there - segments_of(psutil.process_iter()):
            path.unlink(missing_ok=True)


def _mappings(process: psutil.Process) -> set[Path]:
    """From the kernel's list, which ends each line with the file's name, and ` (deleted)` where it has none
    any more.
    """
    try:
        lines = Path(f"/proc/{process.pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    files = [line[line.index(" " + SHARED_MEMORY) + 1 :] for line in lines if " " + SHARED_MEMORY in line]
    return {Path(file) for file in files if not file.endswith(" (deleted)")}


def _semaphores(process: psutil.Process) -> set[Path]:
    return set(Path(SHARED_MEMORY).glob(f"sem.*-{process.pid}-*"))
