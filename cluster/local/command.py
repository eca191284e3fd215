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

BUILD = ROOT / "build"
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
