"""The process of a command-line program: signals, limits, the machine, its console."""

import os
import platform
import resource
import signal
import sys

from rich.console import Console


def restore_interrupts() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt`: a background job of a shell starts with it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def allow_open_files(count: int | None = None) -> None:
    """Let this process open `count` files, or as many as the machine allows: each connection is one.

    Raises:
        SystemExit: the machine does not allow `count`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count is None:
        wanted = hard
    elif hard != resource.RLIM_INFINITY and hard < count:
        raise SystemExit(
            f"{count} open files are needed, and `ulimit -H -n` is {hard}: raise it, or open fewer."
        )
    else:
        wanted = count if soft == resource.RLIM_INFINITY else max(soft, count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def machine() -> str:
    """One line that says what a figure was measured on."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores, {memory_gb:.0f} GB, {system}, load {os.getloadavg()[0]:.1f}"


def wide_console() -> Console:
    """Standard output; wide enough for tables where it is a file or a pipe."""
    return Console(width=None if sys.stdout.isatty() else 200)
