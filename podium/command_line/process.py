"""Signals and limits of a command-line program's process, and a description of the machine."""

import os
import platform
import resource
import signal
import sys
import threading

AGAIN_AFTER_S = 0.05


def restore_interrupts() -> None:
    """Make sure that Ctrl-C raises `KeyboardInterrupt`.

    This is needed for two reasons. A shell starts background jobs with SIGINT ignored. And Python loses an
    interrupt that arrives while the callback of a weak reference runs, which happens during every import. A
    lost interrupt is sent again.
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
    """Raise this process's limit on open files, which connections are, to `count` or the maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count is None:
        limit = hard
    elif hard != resource.RLIM_INFINITY and hard < count:
        raise SystemExit(
            f"This command opens {count} files and connections, but the hard limit (`ulimit -H -n`) is {hard}. Raise the limit, or use fewer connections."
        )
    else:
        limit = count if soft == resource.RLIM_INFINITY else max(soft, count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def machine() -> str:
    """Describe this machine in one line, to be shown with the figures that were measured on it."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores, {memory_gb:.0f} GB, {system}, load {os.getloadavg()[0]:.1f}"
