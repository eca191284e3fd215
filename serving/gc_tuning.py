"""Settings of Python's garbage collector and of the memory allocator in a serving process.

Reference counting frees nearly all objects. The collector is needed only for reference cycles. With Python's
defaults, it would scan every loaded module again every few hundred requests.
"""

import asyncio
import ctypes
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

YOUNG_OBJECTS = 50_000
"""Number of new container objects after which the youngest generation is collected. One request allocates
more than Python's default of 700.
"""
CLOSED_S = 1.0
"""Seconds after which a closed object and its connections are no longer referenced."""


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, LARGE_BYTES = -1, -3, 524_288
"""Parameters of glibc's `mallopt`. Blocks larger than `LARGE_BYTES` get their own pages.

The limit must exceed 256 KiB, which asyncio allocates for each read of a socket. With pages of its own, a
read of 500 bytes takes 20 µs of CPU instead of 3 (2026-11-29).
"""


LOOK_EVERY_S = 10.0
IDLE = 0.1
"""A process that uses less than this share of one core counts as idle."""
GROWN = 1.05
"""Factor by which memory must have grown since the last trim before it is trimmed again."""


def tune_garbage_collection() -> None:
    """Freeze the objects at the end of the start-up, collect less often, and let `mallopt` return large
    blocks, of which glibc keeps up to 32 MB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # only glibc has it
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def trim_when_idle() -> None:
    """Start a timer that returns free memory when the process is idle and has grown. Call it once in the
    event loop. glibc alone would keep the memory of a burst.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        _Trimmer(trim).poll()


class _Trimmer:
    """Timer of `trim_when_idle`."""

    def __init__(self, trim: Callable[[int], int]) -> None:
        self._trim, self._loop = trim, asyncio.get_running_loop()
        self._cpu_s, self._least_bytes = time.process_time(), _resident_bytes()

    def poll(self) -> None:
        """Trim if the process is idle and has grown, and schedule the next check."""
        cpu_s, self._cpu_s = self._cpu_s, time.process_time()
        is_idle = self._cpu_s - cpu_s < IDLE * LOOK_EVERY_S
        if is_idle and _resident_bytes() > GROWN * self._least_bytes:
            gc.collect()
            self._loop.run_in_executor(None, self._trim, 0).add_done_callback(self._note)
        self._loop.call_later(LOOK_EVERY_S, self.poll)

    def _note(self, _: object) -> None:
        self._least_bytes = _resident_bytes()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


_next: asyncio.TimerHandle | None = None
"""The scheduled collection, if any."""


def collect_soon() -> None:
    """Schedule a garbage collection. Call this after closing large objects with reference cycles, such as SDK
    clients.

    Otherwise the collector scans old objects only after minutes or hours. In that time, 50 reloads of 48
    workers took 1.5 GB. A further call postpones the collection, so that closing many objects stops the event
    loop only once.
    """
    global _next
    if _next is not None:
        _next.cancel()
    _next = asyncio.get_running_loop().call_later(CLOSED_S, gc.collect)
