"""The garbage collector and the allocator of a process that serves.

Knows nothing of what is served. Nearly everything dies by its reference count; the collector only looks for
circles, and by Python's defaults it looks through every loaded module again each few hundred requests.
"""

import asyncio
import ctypes
import gc

YOUNG_OBJECTS = 50_000
"""New containers between two looks at the young ones; Python's own 700 are fewer than one request makes."""
CLOSED_S = 1.0
"""By then whoever has closed something large lets go of it, and its connections are gone."""


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, LARGE_BYTES = -1, -3, 262_144
"""`mallopt` of glibc: what is larger gets pages of its own."""


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
