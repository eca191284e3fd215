"""The attacker process: `python -m loadtest.siege.attacker`.

It reads its `Orders` as a line of JSON from standard input. It prints `ready` once it is prepared, and
attacks when it receives another line. Then it prints its counters as one line of JSON per second. It cleans
up and exits after `ENDS_AFTER_S`, or when its standard input closes, which also happens when its parent
process ends.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from loadtest.siege.attack import Attack, Orders
from loadtest.siege.attack_kinds import EXTRA_KINDS, KINDS
from podium.command_line.process import allow_open_files

ENDS_AFTER_S = 600.0


async def report(attack: Attack) -> None:
    """Print the counters every second."""
    while True:
        print(json.dumps(attack.counts), flush=True)
        await asyncio.sleep(1)


async def run(orders: Orders) -> None:
    """Prepare the attack, wait for the start signal, and attack."""
    attack = Attack(orders)
    row = (KINDS | EXTRA_KINDS)[orders.kind]
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
    orders = Orders(**json.loads(sys.stdin.readline()))
    allow_open_files(orders.count + 200)
    with suppress(KeyboardInterrupt, TimeoutError):
        asyncio.run(run(orders))


if __name__ == "__main__":
    main()
