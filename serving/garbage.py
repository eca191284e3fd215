"""The garbage collector and the allocator of a process that serves.

Knows nothing of what is served. Nearly everything dies by its reference count; the collector only looks for
circles, and by Python's defaults it looks through every loaded module again each few hundred requests.
"""

import asyncio
import ctypes
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

YOUNG_OBJECTS = 50_000
"""New containers between two looks at the young ones; Python's own 700 are fewer than one request makes."""
CLOSED_S = 1.0
"""By then whoever has closed something large lets go of it, and its connections are gone."""


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, LARGE_BYTES = -1, -3, 524_288
"""`mallopt` of glibc: what is larger gets pages of its own. It is more than the 256 KiB that asyncio allocates for each read of a
socket: with pages of its own such a read takes 20 µs of CPU, without 3 (500 bytes, 2026-11-29).
"""


LOOK_EVERY_S = 10.0
IDLE = 0.1
"""Of one core, of which a process that takes less is idle."""
GROWN = 1.05
"""Of memory, since it was trimmed last."""


def tune_garbage_collection() -> None:
    """Call once at the end of start-up. What is there by then stays for good and is never looked through again;
    circles that come later are found as before, in larger lots. Large blocks go back to the system when they are freed: by
    itself glibc keeps blocks of up to 32 MB for later, between others that are still in use.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # another C library has none
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def trim_when_idle() -> None:
    """Call once in the event loop. Whenever the process is idle and has grown, find circles, and give pages that are free
    between blocks in use back to the system, which glibc does only at the end of its heap: after a burst a router would keep
    them for good. It takes some milliseconds, and the loop runs meanwhile.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        _Trimmer(trim).look()


class _Trimmer:
    """See `trim_when_idle`.

    Args:
        trim: `malloc_trim` of glibc.
    """

    def __init__(self, trim: Callable[[int], int]) -> None:
        self._trim, self._loop = trim, asyncio.get_running_loop()
        self._cpu_s, self._least_bytes = time.process_time(), _resident_bytes()

    def look(self) -> None:
        """Trim if it is time, and look again later."""
        cpu_s, self._cpu_s = self._cpu_s, time.process_time()
        is_idle = self._cpu_s - cpu_s < IDLE * LOOK_EVERY_S
        if is_idle and _resident_bytes() > GROWN * self._least_bytes:
            gc.collect()
            self._loop.run_in_executor(None, self._trim, 0).add_done_callback(self._note)
        self._loop.call_later(LOOK_EVERY_S, self.look)

    def _note(self, _: object) -> None:
        self._least_bytes = _resident_bytes()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


_next: asyncio.TimerHandle | None = None
"""The collection that is due."""


def collect_soon() -> None:
    """Call wherever something large was closed that has circles in it, such as the clients of SDKs: it is freed soon.
    By itself the collector looks through what is old after minutes or hours, and 50 reloads of 48 workers took 1.5 GB
    by then.

    Whatever is closed before then is collected with it, whoever closed it: a process has one collector, and one
    collection after each of a row of closings would stop the loop for their sum.
    """
    global _next
    if _next is not None:
        _next.cancel()
    _next = asyncio.get_running_loop().call_later(CLOSED_S, gc.collect)
