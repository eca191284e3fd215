"""What to do where set-up failed, by the output of the failed command."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.local.uv import ROOT

REMEDIES = (
    (
        r"gcc.*(not found|No such file)|Python\.h|command '.*(cc|gcc|g\+\+)' failed",
        (
            "A package of training and evaluation (pycosat) is compiled here and needs a C compiler and Python's headers:\n"
            "on Debian and Ubuntu, `apt install gcc python3-dev`. `make serve` and `make demo` do without."
        ),
    ),
    (
        r"No space left on device|Errno 28|os error 28",
        "The disk is full. Free some space (4 GB are needed with local models), then run `make setup` again.",
    ),
    (
        r"Permission denied|Read-only file system|Errno 13|Errno 30|os error 13|os error 30",
        f"This account may not write under {ROOT}, or not into uv's cache (UV_CACHE_DIR names another folder).",
    ),
    (
        r"download\.pytorch\.org",
        (
            "The CPU build of torch is fetched from PyTorch's own index, which cannot be reached. Name a mirror of it, or a folder\n"
            "with that wheel, to pip: PIP_EXTRA_INDEX_URL=<address> or PIP_FIND_LINKS=<folder>, then `make setup` again."
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
            "torch, this Python or machine has a build of its own that the lock does not know: `make lock` adds what your index has.\n"
            "For every other package find out first who changed the file."
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
            "The package index cannot be reached. `pip config list` shows which one is asked; check network and proxy,\n"
            "then run `make setup` again: it goes on where it stopped."
        ),
    ),
    (
        r"No solution found|No matching distribution|Could not find a version",
        (
            "The package index has no build of that version for this Python and machine. Linux on x86-64 or arm64 with\n"
            "Python 3.11 is what the lock was made on."
        ),
    ),
)


def explain(output: str, phase: str, log: Path) -> str:
    """The last lines of the output, what they mean, and where the log is."""
    tail = "\n".join(f"    {line[:200]}" for line in output.strip().splitlines()[-8:])
    remedy = next(
        (text for pattern, text in REMEDIES if re.search(pattern, output)), "Run `make setup` again."
    )
    return f"{phase} failed:\n{tail}\n\n{remedy}\nThe whole output: {log}"
