"""Run the commands of set-up. Their output goes to a log, and its last line is shown on the terminal.

This module imports only the standard library.
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
from serving import DATA

BUILD = DATA / "build"
LOG = BUILD / "setup.log"


class SetupError(Exception):
    """Set-up cannot continue. The message says what failed and what to do."""


def run(
    command: Sequence[str],
    phase: str,
    *,
    environment: Mapping[str, str] | None = None,
    must_succeed: bool = True,
) -> None:
    """Run `command`, write its output to the log and its last line to the terminal. `phase` names it. The
    SetupError contains the end of the output and the likely remedy.
    """
    with LOG.open("a+b") as log:
        start = log.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=environment, start_new_session=True
        )
        with ending(process):
            progress = wait_for(process, phase, LOG, start)
        log.seek(start)
        output = log.read().decode(errors="replace")
    if process.returncode != 0 and must_succeed:
        progress.end()
        raise SetupError(explain(output, phase, LOG))
    progress.finish()


def wait_for(process: subprocess.Popen[bytes], phase: str, log: Path, start: int = 0) -> Progress:
    """Show the last line of the log after byte `start` until the process ends. Return the progress line, still open."""
    progress = Progress(f"set-up: {phase}")
    while process.poll() is None:
        progress.show(last_line(log, start))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    return progress


@contextlib.contextmanager
def ending(process: subprocess.Popen[bytes]) -> Generator[None]:
    """Context manager that ends the process and its process group when the block ends, if it still runs."""
    try:
        yield
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def last_line(log: Path, start: int = 0) -> str:
    """Return the last line of a log, or "" if there is none after byte `start`."""
    with contextlib.suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip()[:100] for line in reversed(lines) if line.strip()), "")
    return ""


def ask(*command: str) -> str:
    """Return the output of a short command, or "" if it cannot be started."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
