"""A batch whose router is killed. Another router must finish it, and no line may run twice."""

import asyncio
import json
from collections import Counter

import pytest

from serving.database.address import Address
from tests.serving.api.test_batches import begin, end, line, rows
from tests.serving.store.stores import replicas
from tests.serving.store.test_run_takeover import WORDS, expire_lease, router_process, settings

pytestmark = [pytest.mark.postgresql, pytest.mark.real_time]

N_DONE, N_HALTED, N_WAITING = 5, 8, 4
"""Number of lines that have ended, are running, and have not begun when the router is killed."""


async def test_every_line_of_a_killed_routers_batch_runs_once(store_address: Address) -> None:
    lines = [line(f"a{n}") for n in range(N_DONE)]
    lines += [line(f"b{n}", model="b") for n in range(N_HALTED + N_WAITING)]
    async with (
        replicas(store_address, settings(WORDS), n=1) as (other,),
        router_process(store_address) as (process, url, owner),
    ):
        sdk = other.api.sdk
        id = await begin(sdk.with_options(base_url=f"{url}/v1"), *lines)
        async with asyncio.timeout(30):
            while len(await other.rows("SELECT 1 FROM run")) < N_DONE + N_HALTED:
                await asyncio.sleep(0.05)
            while (await sdk.batches.retrieve(id)).request_counts.completed < N_DONE:
                await asyncio.sleep(0.05)
        assert await other.api.batches.sweep() == 0, "its router lives"
        process.kill()
        await expire_lease(other, owner)
        assert await other.api.batches.sweep() == 1
        # The sweep of runs begins with the first line here, and may have left some.
        await other.records.take_over()
        batch = await end(sdk, id)
        assert (batch.status, batch.request_counts.completed) == ("completed", len(lines))
        answers = await rows(sdk, batch.output_file_id)
        assert list(answers) == [each["custom_id"] for each in lines]
        runs = Counter(row["response"]["request_id"] for row in answers.values())
        assert set(runs.values()) == {1}
        assert {row.id for row in await other.rows("SELECT id FROM run")} == set(runs)
        text = json.dumps(list(answers.values()))
        assert text.count(WORDS) == N_HALTED + N_WAITING
        assert (len(other.api.worker("a").calls), len(other.api.worker("b").calls)) == (
            0,
            N_HALTED + N_WAITING,
        )
        async with asyncio.timeout(30):  # the result is reported before it is cleaned up
            while await other.rows("SELECT 1 FROM batch_line"):
                await asyncio.sleep(0.05)
