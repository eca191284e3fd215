"""What is in `.venv`: which packages the lock wants, which are there, and whether they are whole. Standard library only."""

from __future__ import annotations

import csv
import hashlib
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
PIP_LOCK = ROOT / "requirements" / "pip.lock"
BASE_LOCK = ROOT / "requirements" / "base.lock"
"""What the router, API workers and scripted workers need. The other locks are installed on top of it."""
CPU_LOCK = ROOT / "requirements" / "cpu.lock"
"""What a vLLM engine on a CPU needs besides: vLLM, torch, transformers."""
DEV_LOCK = ROOT / "requirements" / "dev.lock"
"""What the checks, the tests and the load tests need besides."""
LEARNING_LOCK = ROOT / "requirements" / "learning.lock"
"""What training and evaluation need besides, on top of all the others. One of its packages (pycosat) is compiled on the spot."""


def stamp_of(lock: Path) -> Path:
    """Where the stamp of an installed lock is."""
    return VENV / f"podium-{lock.stem}-stamp"


def wanted_stamp(lock: Path) -> str:
    """What `.venv` was made from: lock, project file, place and Python version, as one hash."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {ROOT}".encode())
    for path in (lock, ROOT / "pyproject.toml"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def read_stamp(lock: Path) -> str:
    """The stamp of a finished install of `lock`, or an empty string."""
    try:
        return stamp_of(lock).read_text().strip() if PYTHON.exists() else ""
    except OSError:
        return ""


def locked_names(lock: Path) -> list[str]:
    """The packages in the lock file, normalised as dist-info folders are compared."""
    lines = (line.split("#")[0].strip() for line in lock.read_text().splitlines())
    return [normal(line.split("==")[0]) for line in lines if line]


def normal(name: str) -> str:
    """A package name in the one spelling all its spellings share."""
    return re.sub(r"[-_.]+", "-", name).lower()


def site_packages() -> Path:
    """The folder that pip installs into."""
    return VENV / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def installed() -> dict[str, Path]:
    """Normalised name -> dist-info folder of everything that pip believes is installed."""
    return {normal(info.name.split("-")[0]): info for info in site_packages().glob("*.dist-info")}


def is_whole(info: Path) -> bool:
    """Whether every file that the package's RECORD lists is there in the size it should have."""
    try:
        rows = list(csv.reader((info / "RECORD").read_text(encoding="utf-8").splitlines()))
    except OSError:
        return False
    for name, _, size in (row for row in rows if len(row) == 3):
        if name.endswith(".pyc"):
            continue
        try:
            if size and (info.parent / name).stat().st_size != int(size):
                return False
        except OSError:
            return False
    return bool(rows)


def repair() -> None:
    """After an interrupted run: forget packages that are only half there, so that pip installs them again."""
    for stash in site_packages().glob("~*"):  # what pip had moved aside
        shutil.rmtree(stash, ignore_errors=True)
    for name, info in installed().items():
        if name not in ("pip", "podium") and not is_whole(info):
            print(f"set-up: {name} was left half-installed; installing it again", flush=True)
            shutil.rmtree(info)
