"""Faults of a database and of a machine. Each lasts for the duration of a block."""

import asyncio
import subprocess
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from loadtest.rig import RigError
from loadtest.rig.databases import Postgres
from loadtest.rig.routers import RouterProcess

DISK_BYTES = 24_000_000
CHUNK = b"\0" * 65_536


@asynccontextmanager
async def stop_postgres(postgres: Postgres, for_s: float) -> AsyncGenerator[None]:
    """Crash PostgreSQL, and restart it at the end of the block, at least `for_s` seconds later."""
    await asyncio.to_thread(postgres.stop)
    try:
        await asyncio.sleep(for_s)
        yield
    finally:
        await asyncio.to_thread(postgres.start)


@contextmanager
def small_disk(folder: Path) -> Generator[Path]:
    """Mount a small disk (`DISK_BYTES`) on a new folder in `folder`. This needs root."""
    disk = folder / "disk"
    disk.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mount.returncode:
        raise RigError(f"A small disk could not be mounted: {mount.stderr.strip()}. Run this as root.")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@contextmanager
def full(disk: Path) -> Generator[None]:
    """Fill a disk to the last byte while the block runs."""
    ballast = disk / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file:
            for size in (len(CHUNK), 512):
                try:
                    while file.write(CHUNK[:size]) == size:
                        pass
                except OSError:
                    pass
        yield
    finally:
        ballast.unlink()


@contextmanager
def clock_moved(routers: Sequence[RouterProcess], clock: Path, by_s: float) -> Generator[None]:
    """Shift the routers' time of day by `by_s` seconds while the block runs."""
    for off_s in (by_s, 0.0):
        clock.write_text(str(off_s))
        for router in routers:
            router.move_clock()
        if off_s:
            yield
