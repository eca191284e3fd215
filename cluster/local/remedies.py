"""Remedies for failures of set-up, chosen by the output of the failed command."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.local.uv import ROOT

REMEDIES = (
    (
        r"gcc.*(not found|No such file)|Python\.h|command '.*(cc|gcc|g\+\+)' failed",
        (
            "A package for training and evaluation (pycosat) must be compiled, which needs a C compiler and Python's headers.\n"
            "On Debian and Ubuntu, run `apt install gcc python3-dev`. `make serve` and `make demo` do not need this package."
        ),
    ),
    (
        r"No space left on device|Errno 28|os error 28",
        "The disk is full. Free some space (4 GB are needed with local models), then run `make setup` again.",
    ),
    (
        r"Permission denied|Read-only file system|Errno 13|Errno 30|os error 13|os error 30",
        f"This account may not write to {ROOT} or to uv's cache. Correct the permissions, or set UV_CACHE_DIR to another folder.",
    ),
    (
        r"download\.pytorch\.org",
        (
            "The CPU build of torch comes from PyTorch's own index, which cannot be reached. Set PIP_EXTRA_INDEX_URL=<address> to a\n"
            "mirror, or PIP_FIND_LINKS=<folder> to a folder with the wheel, and run `make setup` again."
        ),
    ),
    (
        r"no trusted hash|must have their versions pinned",
        "requirements/all.lock does not list a package that is needed, so nothing was installed. Run `make lock` to add it.",
    ),
    (
        r"[Hh]ash mismatch|DO NOT MATCH THE HASHES",
        (
            "A file on the package index does not match its hash in requirements/all.lock, so it was not installed. If the package is\n"
            "torch, this Python or machine needs a build that is not in the lock file. Run `make lock` to add it.\n"
            "For any other package, first find out who changed the file."
        ),
    ),
    (
        r"\+cpu",
        (
            "No configured package index has the CPU build of torch. It is in PyTorch's own index for CPUs, whose address is shown at\n"
            "pytorch.org (Get Started, CPU). Run `PIP_EXTRA_INDEX_URL=<address> make setup`. On a machine with GPUs, run\n"
            "`pip install '.[gpu]'` in a separate environment instead."
        ),
    ),
    (
        r"[Ff]ailed to fetch|error sending request|dns error|NewConnectionError|Max retries|Connection|timed out|SSLError|ProxyError",
        (
            "The package index cannot be reached. `pip config list` shows its address. Check the network and the proxy,\n"
            "then run `make setup` again. It continues where it stopped."
        ),
    ),
    (
        r"No solution found|No matching distribution|Could not find a version",
        (
            "The package index has no build of this version for this Python and machine. The lock file was made for Linux on\n"
            "x86-64 or arm64, with Python 3.11. Use such a machine, or run `make lock`."
        ),
    ),
)


def explain(output: str, phase: str, log: Path) -> str:
    """Return an error message with the end of the output, the likely remedy and the path of the log."""
    tail = "\n".join(f"    {line[:200]}" for line in output.strip().splitlines()[-8:])
    remedy = next(
        (text for pattern, text in REMEDIES if re.search(pattern, output)), "Run `make setup` again."
    )
    return f"{phase[:1].upper()}{phase[1:]} failed:\n{tail}\n\n{remedy}\nFull output: {log}"
