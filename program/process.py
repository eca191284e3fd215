"""The process of a command-line program: signals, limits, the machine, its console."""

import os
import platform
import resource
import signal
import sys
import threading

from rich.console import Console

AGAIN_AFTER_S = 0.05


def restore_interrupts() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt`. A background job of a shell starts with it ignored; and Python drops
    one that comes while it runs the callback of a weak reference, as every import does: it is raised again.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = sys.unraisablehook

    def interrupt_again(dropped: "sys.UnraisableHookArgs") -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            main = threading.main_thread().ident or 0
            threading.Timer(AGAIN_AFTER_S, signal.pthread_kill, (main, signal.SIGINT)).start()
        else:
            before(dropped)

    if getattr(before, "__name__", "") != interrupt_again.__name__:
        sys.unraisablehook = interrupt_again


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
