"""What a router process holds at a moment: it is asked by SIGUSR2, and answers with one line of JSON on its standard
output.

Knows both ends of that line, and nothing of what is served or of when to ask.
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
    """What a router holds.

    Args:
        runs: under way.
        calls: to workers, under way or waiting.
        files: open descriptors, sockets included, the store's own left out: its pool opens connections up to its bound
            whenever it first needs one more.
        sockets: TCP connections, and the one that listens.
        tasks: of its event loop.
        spans: begun and not ended.
        blocks: of memory that Python's objects take, after a collection.
        memory_mb: of the process, as the system counts it, once what is free and whole pages was given back to it.
        heap_mb: of it, what C libraries have asked for and not given back (glibc); 0 where that cannot be known.
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
    """How many spans have begun and not ended."""

    def __init__(self) -> None:
        self.n = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """See the base class."""
        self.n += 1

    def on_end(self, span: ReadableSpan) -> None:
        """Likewise."""
        self.n -= 1


def answer_signals(service: Service) -> None:
    """In a router: make spans, count them, and answer each SIGUSR2. Called in its event loop."""
    spans, provider = OpenSpans(), TracerProvider()
    provider.add_span_processor(spans)
    trace.set_tracer_provider(provider)

    def answer() -> None:
        sys.stdout.write(json.dumps(asdict(_look(service, spans))) + "\n")
        sys.stdout.flush()

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, answer)


def _trim_heap() -> int:
    """Give back whole pages that the C library's allocator keeps free; the bytes that are in use, of all its arenas (each
    thread has one, so `mallinfo`, which knows the first alone, sees nothing of what SQLite's connections keep).
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_info"):
        return 0
    library.malloc_trim(0)
    library.fopen.restype = ctypes.c_void_p
    with NamedTemporaryFile() as told:
        stream = ctypes.c_void_p(library.fopen(told.name.encode(), b"w"))
        library.malloc_info(0, stream)
        library.fclose(stream)
        heap = ElementTree.parse(told.name).getroot()
    free = sum(
        int(each.attrib["size"])
        for kind in ("fast", "rest")
        for each in heap.findall(f"total[@type='{kind}']")
    )
    held = [
        each for path in ("system[@type='current']", "total[@type='mmap']") for each in heap.findall(path)
    ]
    return sum(int(each.attrib["size"]) for each in held) - free


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
    """What `router`, which is watched, holds now.

    Raises:
        RigError: it has ended.
        TimeoutError: its event loop stands still.
    """
    assert router.process.stdout is not None
    router.process.send_signal(signal.SIGUSR2)
    async with asyncio.timeout(ANSWERS_WITHIN_S):
        line = await router.process.stdout.readline()
    if not line:
        raise RigError("the router has ended by itself")
    return Vitals(**orjson.loads(line))
