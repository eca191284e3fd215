"""A statement whose caller is cancelled: its thread ends before the loop of the test closes."""

import asyncio
import threading
import time
from pathlib import Path

import aiosqlite
import pytest


@pytest.mark.parametrize("cancelled_after_s", [0, 0.01])
def test_a_loop_closes_after_the_thread_of_a_cancelled_statement(tmp_path: Path, cancelled_after_s: float):
    from tests.virtual_time import CarefulLoop

    async def cancel_a_slow_statement() -> None:
        connection = await aiosqlite.connect(tmp_path / "store.db")
        await connection.create_function("pause", 0, lambda: time.sleep(0.2))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.execute("SELECT pause()"), cancelled_after_s)
        connection.stop()

    before = set(threading.enumerate())  # a server of another test may have connections open
    with asyncio.Runner(loop_factory=CarefulLoop) as runner:
        runner.run(cancel_a_slow_statement())
    until_s = time.monotonic() + 10
    while set(threading.enumerate()) - before:
        assert time.monotonic() < until_s
        time.sleep(0.01)
