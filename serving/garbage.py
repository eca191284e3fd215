"""Garbage collector and allocator settings of a serving process.

Reference counts free nearly everything; the collector only finds cycles. With Python's defaults it scans every loaded
module again every few hundred requests.
"""

import asyncio
import ctypes
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

YOUNG_OBJECTS = 50_000
"""New containers between two collections of the youngest generation. Python's default of 700 is less than one request
allocates."""
CLOSED_S = 1.0
"""Time after which the references to a closed object and its connections are gone."""


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, LARGE_BYTES = -1, -3, 524_288
"""Parameters of glibc's `mallopt`. Blocks larger than `LARGE_BYTES` get their own pages. asyncio allocates 256 KiB for
each read of a socket, which must stay below: with its own pages a read takes 20 µs of CPU instead of 3 (500 bytes,
2026-11-29)."""


LOOK_EVERY_S = 10.0
IDLE = 0.1
"""Share of one core below which a process is idle."""
GROWN = 1.05
"""Growth of memory since the last trim that calls for another one."""


def tune_garbage_collection() -> None:
    """Freeze existing objects, collect less often, and return large blocks to the system when they are freed.

    Call it once at the end of start-up: objects that exist by then are never scanned again. Without `mallopt`, glibc
    keeps freed blocks of up to 32 MB between others that are still in use.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # only glibc has it
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def trim_when_idle() -> None:
    """Start to collect garbage and return free pages to the system whenever the process is idle and has grown.

    Call it once, in the event loop. glibc returns pages only from the end of its heap, so a router would keep the memory
    of a burst for good. Trimming takes some milliseconds in another thread.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        _Trimmer(trim).look()


class _Trimmer:
    """Timer of `trim_when_idle`.

    Args:
        trim: `malloc_trim` of glibc.
    """

    def __init__(self, trim: Callable[[int], int]) -> None:
        self._trim, self._loop = trim, asyncio.get_running_loop()
        self._cpu_s, self._least_bytes = time.process_time(), _resident_bytes()

    def look(self) -> None:
        """Trim if the process is idle and has grown, and schedule the next check."""
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
"""The scheduled collection, if any."""


def collect_soon() -> None:
    """Schedule a garbage collection. Call it after closing large objects with reference cycles, such as SDK clients.

    Otherwise the collector scans old objects only after minutes or hours: 50 reloads of 48 workers took 1.5 GB by then.
    Further calls postpone the collection, so that a series of closings stops the event loop only once.
    """
    global _next
    if _next is not None:
        _next.cancel()
    _next = asyncio.get_running_loop().call_later(CLOSED_S, gc.collect)
