"""The attacker: `python -m loadtest.siege.attacker`, with its `Orders` as a line of JSON on its standard input.

It prints `ready` once it is prepared and attacks when it is sent another line. Then it prints one line of JSON
per second: its counts. It cleans up and ends when its standard input is closed, which happens too when the process
that started it is gone, and by itself after `ENDS_AFTER_S`.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from loadtest.siege.attack import Attack, Orders
from loadtest.siege.rows import EXTRA_ROWS, ROWS
from program.process import allow_open_files

ENDS_AFTER_S = 600.0


async def report(attack: Attack) -> None:
    """Print the counts every second."""
    while True:
        print(json.dumps(attack.counts), flush=True)
        await asyncio.sleep(1)


async def run(orders: Orders) -> None:
    """Prepare, wait, attack."""
    attack = Attack(orders)
    row = (ROWS | EXTRA_ROWS)[orders.kind]
    async with asyncio.timeout(ENDS_AFTER_S), aclosing(row.attack(attack)) as steps:
        await anext(steps)
        attack.answers.clear()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        async with asyncio.TaskGroup() as tasks:
            attacking = [tasks.create_task(report(attack)), tasks.create_task(_go_on(steps))]
            await asyncio.to_thread(sys.stdin.read)
            for task in attacking:
                task.cancel()


async def _go_on(steps: AsyncGenerator[None]) -> None:
    with suppress(StopAsyncIteration):
        await anext(steps)


def main() -> None:
    """Command line."""
    orders = Orders(**json.loads(sys.stdin.readline()))
    allow_open_files(orders.count + 200)
    with suppress(KeyboardInterrupt, TimeoutError):
        asyncio.run(run(orders))


if __name__ == "__main__":
    main()
