"""Run the commands of set-up: output goes to a log, its last line to the terminal. Standard library only."""

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
    """Set-up cannot continue; the message says what failed and what to do."""


def run(
    command: Sequence[str],
    phase: str,
    *,
    environment: Mapping[str, str] | None = None,
    must_succeed: bool = True,
) -> None:
    """Run `command`, write its output to the log, and show the last line.

    Args:
        command: a program and its arguments.
        phase: its name in progress and errors.
        environment: replaces this process's environment.
        must_succeed: whether its failure ends set-up.

    Raises:
        SetupError: the command failed; the message has the end of its output and the likely remedy.
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
    """End the process and its group when the block ends, if it still runs."""
    try:
        yield
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def last_line(log: Path, start: int = 0) -> str:
    """Return the last line of a command's output, from byte `start` of its log on."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip()[:100] for line in reversed(lines) if line.strip()), "")


def ask(*command: str) -> str:
    """Return the output of a short command, or "" if it cannot be started."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
