"""Garbage collection of a serving process: it skips objects from start-up, and still finds cycles."""

import gc
import subprocess
import sys
import weakref

import pytest

from serving import gc_tuning
from tests.states import until

PROGRAM = """
import gc, weakref
from serving.gc_tuning import YOUNG_OBJECTS, tune_garbage_collection

class Circle:
    def __init__(self):
        self.itself = self

tune_garbage_collection()
assert gc.get_freeze_count() > 1000, "what was there by then"
gone = weakref.ref(Circle())
kept = [[] for _ in range(2 * YOUNG_OBJECTS)]
assert gone() is None, "found without being asked"
"""


BURST = """
import asyncio
from serving import gc_tuning

gc_tuning.LOOK_EVERY_S = 0.2

async def main():
    gc_tuning.trim_when_idle()
    burst = [bytearray(2000) for _ in range(40_000)]
    full, kept = gc_tuning._resident_bytes(), burst[::100]
    del burst
    for _ in range(100):
        await asyncio.sleep(0.1)
        if gc_tuning._resident_bytes() < full - 40_000_000:
            return
    raise AssertionError(f"{full} bytes, then {gc_tuning._resident_bytes()}")

asyncio.run(main())
"""


@pytest.mark.real_time
def test_memory_of_a_burst_is_released_when_the_process_is_idle() -> None:
    subprocess.run([sys.executable, "-c", BURST], check=True, timeout=60)


class Circle:
    def __init__(self) -> None:
        self.itself = self


def test_objects_from_start_up_are_frozen_and_later_cycles_are_found() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)


async def test_several_closed_objects_are_collected_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gc_tuning, "CLOSED_S", 0.05)
    collected, references = list[int](), list[weakref.ref[Circle]]()

    def note(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and about["generation"] == 2:
            collected.append(len(references))

    gc.disable()  # so that only the code under test collects
    gc.callbacks.append(note)
    try:
        for _ in range(8):
            references.append(weakref.ref(Circle()))
            gc_tuning.collect_soon()
        await until(lambda: not any(circle() for circle in references), "freed")
        assert collected == [8]
    finally:
        gc.callbacks.remove(note)
        gc.enable()
