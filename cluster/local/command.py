"""Runs the commands of set-up: output into a log, its last line on the terminal, and what to do where one
fails. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from cluster.local.progress import Progress
from cluster.local.remedies import explain
from cluster.local.uv import ROOT

BUILD = ROOT / "build"
LOG = BUILD / "setup.log"


class SetupError(Exception):
    """Set-up cannot go on; the message says what failed and what to do."""


def run(
    command: Sequence[str],
    phase: str,
    *,
    environment: Mapping[str, str] | None = None,
    must_succeed: bool = True,
) -> None:
    """Run `command` into the log and show its last line.

    Args:
        command: a program and its arguments.
        phase: what progress and errors call it.
        environment: instead of this process's.
        must_succeed: whether its failure ends set-up.

    Raises:
        SetupError: it ended with an error; says what it said and what that usually means.
    """
    progress = Progress(f"set-up: {phase}")
    with LOG.open("a+b") as log:
        start = log.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, start_new_session=True
        )
        with ending(process):
            while process.poll() is None:
                progress.show(last_line(LOG, start))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
        log.seek(start)
        output = log.read().decode(errors="replace")
    if process.returncode != 0 and must_succeed:
        progress.end()
        raise SetupError(explain(output, phase, LOG))
    progress.finish()


@contextlib.contextmanager
def ending(process: subprocess.Popen[bytes]) -> Generator[None]:
    """Leave no process behind, whatever happens."""
    try:
        yield
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def last_line(log: Path, start: int = 0) -> str:
    """What a command said last, from byte `start` of its log on."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip()[:100] for line in reversed(lines) if line.strip()), "")


def ask(*command: str) -> str:
    """What a command that takes no time prints; nothing where it cannot be started."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
