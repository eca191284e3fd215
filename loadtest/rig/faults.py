"""What can go wrong with a database and with a machine, on purpose: each a block that it lasts for."""

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
async def stopped(postgres: Postgres, for_s: float) -> AsyncGenerator[None]:
    """A PostgreSQL that crashes, and is started again after the block or `for_s`, whichever is later."""
    await asyncio.to_thread(postgres.stop)
    try:
        await asyncio.sleep(for_s)
        yield
    finally:
        await asyncio.to_thread(postgres.start)


@contextmanager
def small_disk(folder: Path) -> Generator[Path]:
    """A disk of `DISK_BYTES`, mounted on a folder in `folder`.

    Raises:
        RigError: this account may mount none.
    """
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        raise RigError(f"A disk to fill must be mounted, which needs root: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@contextmanager
def full(disk: Path) -> Generator[None]:
    """A disk on which not a byte is left."""
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
    """Routers whose time of day is off, and is set right at the end."""
    for off_s in (by_s, 0.0):
        clock.write_text(str(off_s))
        for router in routers:
            router.move_clock()
        if off_s:
            yield
