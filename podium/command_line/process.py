"""Process of a command-line program: signals, limits and the machine."""

import os
import platform
import resource
import signal
import sys
import threading

AGAIN_AFTER_S = 0.05


def restore_interrupts() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt`.

    A shell starts background jobs with SIGINT ignored. Python also drops an interrupt that arrives while it
    runs the callback of a weak reference, as every import does. A dropped interrupt is sent again.
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
    """Let this process open `count` files, or as many as the machine allows. Each connection is a file.

    Raises:
        SystemExit: the machine does not allow `count`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if count is None:
        limit = hard
    elif hard != resource.RLIM_INFINITY and hard < count:
        raise SystemExit(
            f"This needs {count} open files, but `ulimit -H -n` is {hard}. Raise the limit, or open fewer."
        )
    else:
        limit = count if soft == resource.RLIM_INFINITY else max(soft, count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def machine() -> str:
    """Return a one-line description of the machine that a figure was measured on."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores, {memory_gb:.0f} GB, {system}, load {os.getloadavg()[0]:.1f}"
