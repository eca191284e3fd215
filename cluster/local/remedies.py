"""Remedies for failures of set-up, chosen by the output of the failed command."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.local.uv import ROOT

REMEDIES = (
    (
        r"gcc.*(not found|No such file)|Python\.h|command '.*(cc|gcc|g\+\+)' failed",
        (
            "A package of training and evaluation (pycosat) is compiled here and needs a C compiler and Python's headers:\n"
            "on Debian and Ubuntu, `apt install gcc python3-dev`. `make serve` and `make demo` do not need it."
        ),
    ),
    (
        r"No space left on device|Errno 28|os error 28",
        "The disk is full. Free some space (4 GB are needed with local models), then run `make setup` again.",
    ),
    (
        r"Permission denied|Read-only file system|Errno 13|Errno 30|os error 13|os error 30",
        f"This account may not write under {ROOT}, or not into uv's cache. Set UV_CACHE_DIR to use another folder.",
    ),
    (
        r"download\.pytorch\.org",
        (
            "The CPU build of torch comes from PyTorch's own index, which cannot be reached. Set PIP_EXTRA_INDEX_URL=<address> to a\n"
            "mirror of it, or PIP_FIND_LINKS=<folder> to a folder with that wheel, and run `make setup` again."
        ),
    ),
    (
        r"no trusted hash|must have their versions pinned",
        "requirements/all.lock lacks a package that is needed here, so nothing was installed. `make lock` adds it.",
    ),
    (
        r"[Hh]ash mismatch|DO NOT MATCH THE HASHES",
        (
            "The index has another file than the one whose hash is in requirements/all.lock, so it was not installed. If the package is\n"
            "torch, this Python or machine has a build that is not in the lock: run `make lock` to add it.\n"
            "For every other package, find out first who changed the file."
        ),
    ),
    (
        r"\+cpu",
        (
            "None of the indexes has the CPU build of torch. It is in PyTorch's own index for CPUs (pytorch.org, Get Started, CPU,\n"
            "shows its address): run `PIP_EXTRA_INDEX_URL=<address> make setup`. For a machine with GPUs, install the `gpu` extra in\n"
            "an environment of its own: pip install '.[gpu]'."
        ),
    ),
    (
        r"[Ff]ailed to fetch|error sending request|dns error|NewConnectionError|Max retries|Connection|timed out|SSLError|ProxyError",
        (
            "The package index cannot be reached. `pip config list` shows which one is used. Check network and proxy,\n"
            "then run `make setup` again: it continues where it stopped."
        ),
    ),
    (
        r"No solution found|No matching distribution|Could not find a version",
        (
            "The package index has no build of that version for this Python and machine. The lock was made on Linux,\n"
            "x86-64 or arm64, with Python 3.11."
        ),
    ),
)


def explain(output: str, phase: str, log: Path) -> str:
    """Return an error message with the end of the output, the likely remedy and the path of the log."""
    tail = "\n".join(f"    {line[:200]}" for line in output.strip().splitlines()[-8:])
    remedy = next(
        (text for pattern, text in REMEDIES if re.search(pattern, output)), "Run `make setup` again."
    )
    return f"{phase} failed:\n{tail}\n\n{remedy}\nFull output: {log}"
