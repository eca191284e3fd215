"""What runs here and is in the way: a taken port, what a crashed server left. Nothing is ended."""

from __future__ import annotations

import contextlib
import fcntl
from typing import TYPE_CHECKING

from podium.doctor.finding import Finding, ServerPlace, ok, warning, wrong

if TYPE_CHECKING:
    import psutil

HAPROXY_FILES = ("/podium-", "haproxy-serve")
"""What is in the command line of an HAProxy that Ray Serve started: where its configuration is."""


def check_port(case: ServerPlace) -> Finding:
    """Nobody listens at the port of the server."""
    from cluster.local.processes import describe, is_free, listeners

    if is_free(case.port):
        return ok(f"Port {case.port} is free.")
    holder = next(map(describe, listeners(case.port)), "a process of another account")
    said, _, remedy = holder.partition(". ")
    other = f"Or serve on another port: make serve PORT={case.port + 1}."
    return wrong(f"Port {case.port} is taken by {said}.", f"{remedy}. {other}" if remedy else other)


def check_left_processes(_: ServerPlace) -> Finding:
    """No process of a crashed server of this checkout is left."""
    from cluster.local.processes import command_of, orphans_here

    found = [each for each in orphans_here() if each.name() != "haproxy"]
    if not found:
        return ok("No crashed server of this checkout has left a process.")
    listed = ", ".join(f"pid {each.pid} ({command_of(each)})" for each in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return wrong(
        f"A crashed server left these running, Ray's among them: {listed}{more}.", "`make stop` ends them."
    )


def check_left_session(_: ServerPlace) -> Finding:
    """No folder of a killed server's Ray session takes up disk and shared memory."""
    from cluster.local.folder import LOCK, TAG_FILE, folders
    from cluster.local.processes import processes_of

    left: list[str] = []
    for path in folders():
        with contextlib.suppress(OSError), (path / LOCK).open("a") as lock:
            if _is_held(lock.fileno()) or processes_of((path / TAG_FILE).read_text()):
                continue
            left.append(str(path))
    if not left:
        return ok("No killed server has left a Ray session.")
    return warning(
        f"Killed servers left Ray sessions, which take disk and shared memory: {', '.join(left)}.",
        "`make stop` removes them and keeps their logs in build/.",
    )


def check_haproxy(_: ServerPlace) -> Finding:
    """No HAProxy of a crashed Ray Serve goes on without it: it would answer in the next server's place. Another one can be started."""
    import psutil

    from cluster.local.environment import find_haproxy
    from cluster.local.processes import ServeError

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.name() == "haproxy" and _is_left_over(process):
                return wrong(
                    f"An HAProxy that Ray Serve started is left over: pid {process.pid} ({' '.join(process.cmdline())[:90]}).",
                    f"End it: `kill {process.pid}`.",
                )
    try:
        path = find_haproxy()
    except ServeError as error:
        said, remedy = str(error).split(". ", 1)
        return warning(f"{said}. Podium would serve behind Ray Serve's own proxy.", remedy)
    return ok(f"HAProxy runs here ({path}), and none is left over.")


def _is_left_over(process: psutil.Process) -> bool:
    """Whether Ray Serve started this HAProxy and no process of Ray is above it any more."""
    if not any(mark in " ".join(process.cmdline()) for mark in HAPROXY_FILES):
        return False
    return not any(_is_rays(each) for each in process.parents())


def _is_rays(process: psutil.Process) -> bool:
    """Whether it is one of Ray's, which name themselves `ray::WHAT`, or `raylet`."""
    words = process.cmdline()
    return process.name().startswith("ray") or (bool(words) and words[0].startswith("ray::"))


def _is_held(descriptor: int) -> bool:
    """Whether somebody else has locked the file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
