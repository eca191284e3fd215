"""Resources that a router process is using. When the process receives SIGUSR2, it prints them as one line of
JSON.

This module implements both ends of that protocol.
"""

import asyncio
import ctypes
import gc
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from tempfile import NamedTemporaryFile
from xml.etree import ElementTree

import orjson
import psutil
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

from loadtest.rig import RigError
from loadtest.rig.routers import RouterProcess
from serving.sessions.service import Service

ANSWERS_WITHIN_S = 30.0


@dataclass(frozen=True)
class Vitals:
    """Resources that a router is using.

    Args:
        runs: the number of running runs.
        calls: the number of calls to workers, running or waiting.
        files: the number of open descriptors, including sockets. Those of the store do not count, because its
            pool opens more connections on demand, up to its limit.
        sockets: the number of TCP sockets, including the one that listens.
        tasks: the number of tasks in the event loop.
        spans: the number of spans that have started and not ended.
        blocks: the number of memory blocks of Python objects, after a garbage collection.
        memory_mb: the resident memory of the process, after free pages were returned to the system.
        heap_mb: the memory that C libraries allocated and did not free (glibc), or 0 if it is unknown.
    """

    runs: int
    calls: int
    files: int
    sockets: int
    tasks: int
    spans: int
    blocks: int
    memory_mb: float
    heap_mb: float


class OpenSpans(SpanProcessor):
    """Counter of spans that have started and not ended."""

    def __init__(self) -> None:
        self.n = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.n += 1

    def on_end(self, span: ReadableSpan) -> None:
        self.n -= 1


def answer_signals(service: Service) -> None:
    """Answer each SIGUSR2 in a router's event loop, and create spans so that they can be counted."""
    spans, provider = OpenSpans(), TracerProvider()
    provider.add_span_processor(spans)
    trace.set_tracer_provider(provider)

    def answer() -> None:
        sys.stdout.write(json.dumps(asdict(_look(service, spans))) + "\n")
        sys.stdout.flush()

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, answer)


def _trim_heap() -> int:
    """Return free heap pages to the system. Return how many bytes C libraries use, in all arenas.

    Each thread has an arena. `mallinfo` knows only the first one, and so misses the memory of SQLite's
    connections.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_info"):
        return 0
    library.malloc_trim(0)
    library.fopen.restype = ctypes.c_void_p
    with NamedTemporaryFile() as report:
        stream = ctypes.c_void_p(library.fopen(report.name.encode(), b"w"))
        library.malloc_info(0, stream)
        library.fclose(stream)
        heap = ElementTree.parse(report.name).getroot()
    free = sum(
        int(each.attrib["size"])
        for kind in ("fast", "rest")
        for each in heap.findall(f"total[@type='{kind}']")
    )
    allocated = [
        each for path in ("system[@type='current']", "total[@type='mmap']") for each in heap.findall(path)
    ]
    return sum(int(each.attrib["size"]) for each in allocated) - free


def _look(service: Service, spans: OpenSpans) -> Vitals:
    gc.collect()
    heap = _trim_heap()
    process = psutil.Process(os.getpid())
    of_store = sum("podium.db" in file.path for file in process.open_files())
    return Vitals(
        runs=service.running,
        calls=service.calls,
        files=process.num_fds() - of_store,
        sockets=len(process.net_connections("tcp")),
        tasks=len(asyncio.all_tasks()),
        spans=spans.n,
        blocks=sys.getallocatedblocks(),
        memory_mb=process.memory_info().rss / 1e6,
        heap_mb=heap / 1e6,
    )


async def ask_vitals(router: RouterProcess) -> Vitals:
    """Return the resources of `router`, which was started with `watch`. Raise RigError if it ended."""
    assert router.process.stdout is not None
    router.process.send_signal(signal.SIGUSR2)
    async with asyncio.timeout(ANSWERS_WITHIN_S):
        line = await router.process.stdout.readline()
    if not line:
        raise RigError("The router ended unexpectedly.")
    return Vitals(**orjson.loads(line))
