import asyncio
import time

from tests.virtual_time import VirtualTimeLoop


def test_a_timer_fires_although_another_task_never_waits():
    async def work() -> None:
        while True:
            await asyncio.sleep(0)

    async def wait_beside_work() -> float:
        working = asyncio.create_task(work())
        began_s = asyncio.get_running_loop().time()
        await asyncio.sleep(3600)
        working.cancel()
        return asyncio.get_running_loop().time() - began_s

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(busy_s=0.1)) as runner:
        assert runner.run(wait_beside_work()) >= 3600


def test_time_stands_still_while_other_processes_have_the_cpu():
    async def run_slowly() -> float:
        waiting = asyncio.create_task(asyncio.sleep(3600))
        began_s = asyncio.get_running_loop().time()
        for _ in range(4):
            time.sleep(0.005)  # noqa: ASYNC251 (as if another process had the CPU)
            await asyncio.sleep(0)
        waiting.cancel()
        return asyncio.get_running_loop().time() - began_s

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(busy_s=0.01)) as runner:
        assert runner.run(run_slowly()) == 0


def test_virtual_time_begins_at_the_start_of_a_minute():
    async def read_time() -> float:
        return time.time()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(read_time()) % 60 < 1
