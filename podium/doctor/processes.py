"""Check running processes: a port in use, and processes that a crashed server left.

The checks do not end them.
"""

from __future__ import annotations

import contextlib
import fcntl
from typing import TYPE_CHECKING

from podium.doctor.finding import Finding, ServerPlace, ok, warning, wrong

if TYPE_CHECKING:
    import psutil

HAPROXY_FILES = ("/podium-", "haproxy-serve")
"""Parts of the configuration's path in the command line of an HAProxy that Ray Serve started."""


def check_port(case: ServerPlace) -> Finding:
    from cluster.local.processes import describe, is_free, listeners, other_port

    if is_free(case.port):
        return ok(f"Port {case.port} is free.")
    holder = next(map(describe, listeners(case.port)), "a process of another account")
    message, _, remedy = holder.partition(". ")
    other = f"Or serve on another port with `{other_port(case.port)}`."
    return wrong(f"Port {case.port} is in use by {message}.", f"{remedy}. {other}" if remedy else other)


def check_left_processes(_: ServerPlace) -> Finding:
    """Check that no crashed server of this checkout left processes running."""
    from cluster.local.processes import STOP, command_of, orphans_here

    orphans = [each for each in orphans_here() if each.name() != "haproxy"]
    if not orphans:
        return ok("No crashed server of this checkout left processes running.")
    listed = ", ".join(f"pid {each.pid} ({command_of(each)})" for each in orphans[:3])
    more = f" and {len(orphans) - 3} more" if len(orphans) > 3 else ""
    return wrong(
        f"A crashed server left processes running, including Ray's: {listed}{more}.",
        f"Stop them with `{STOP}`.",
    )


def check_left_session(_: ServerPlace) -> Finding:
    """Check that no killed server left a Ray session, which takes disk space and shared memory."""
    from cluster.local.folder import LOCK, TAG_FILE, folders
    from cluster.local.processes import processes_of

    sessions: list[str] = []
    for path in folders():
        with contextlib.suppress(OSError), (path / LOCK).open("a") as lock:
            if _is_held(lock.fileno()) or processes_of((path / TAG_FILE).read_text()):
                continue
            sessions.append(str(path))
    if not sessions:
        return ok("No killed server left a Ray session.")
    return warning(
        f"Killed servers left Ray sessions, which use disk space and shared memory: {', '.join(sessions)}.",
        "Remove them with `make stop`, which keeps their logs in build/.",
    )


def check_haproxy(_: ServerPlace) -> Finding:
    """Check HAProxy, and that a crashed Serve left none running, which would answer for the next server."""
    import psutil

    from cluster.local.environment import find_haproxy
    from cluster.local.processes import ServeError

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.name() == "haproxy" and _is_left_over(process):
                return wrong(
                    f"An HAProxy that a crashed Ray Serve started is still running: pid {process.pid} ({' '.join(process.cmdline())[:90]}).",
                    f"Stop it with `kill {process.pid}`.",
                )
    try:
        path = find_haproxy()
    except ServeError as error:
        message, remedy = str(error).split(". ", 1)
        return warning(f"{message}. Podium would use Ray Serve's own proxy instead.", remedy)
    return ok(f"HAProxy can run on this machine ({path}).")


def _is_left_over(process: psutil.Process) -> bool:
    """Return whether Ray Serve started this HAProxy, but none of its ancestors is a Ray process any more."""
    if not any(mark in " ".join(process.cmdline()) for mark in HAPROXY_FILES):
        return False
    return not any(_is_rays(each) for each in process.parents())


def _is_rays(process: psutil.Process) -> bool:
    """Return whether this is a process of Ray. Their names are `ray::...` or `raylet`."""
    words = process.cmdline()
    return process.name().startswith("ray") or (bool(words) and words[0].startswith("ray::"))


def _is_held(descriptor: int) -> bool:
    """Return whether another process holds the lock of this file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
