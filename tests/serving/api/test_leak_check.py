"""The checks of `served` at the end of each test, which find tasks and holds that were left."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from conductor.model.usage import FREE
from conductor.run.ledger import BudgetLedger
from conductor.run.plan_run import PlanRun
from conductor.run.rounds import RoundLoop
from serving.api.run_response import RunResponse, _wait_for_disconnect
from tests.serving.api.served import left_tasks, scripted, served, team
from tests.states import until


async def test_every_task_of_a_run_is_found_until_its_client_leaves() -> None:
    workers = [scripted("a", "Late.", delay_s=60), scripted("b"), scripted("c")]
    async with served(team(workers=workers)) as api:
        asking = asyncio.create_task(api.post({"stream": True}))
        await until(lambda: api.worker("a").open_calls, "a step is called")
        of_a_run = (RunResponse._answer, _wait_for_disconnect, RoundLoop.drive, PlanRun._step)
        assert {each.__qualname__ for each in of_a_run} <= set(left_tasks())
        asking.cancel()
        await asyncio.wait([asking])
        await api.quiet()
        assert left_tasks() == []


async def never() -> dict[str, str]:
    """Wait for ever, like an ASGI client that sends nothing."""
    await asyncio.Event().wait()
    return {"type": ""}


@pytest.mark.parametrize("leave", [lambda: _wait_for_disconnect(never), lambda: asyncio.Event().wait()])
async def test_a_leaked_task_fails_the_test(leave: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(AssertionError, match=r"no task left: .*(wait_for_disconnect|Event\.wait)"):
        async with served(team()):
            task = asyncio.ensure_future(leave())
    task.cancel()


async def test_a_leaked_hold_fails_the_test() -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(AssertionError, match="Hold"):
            async with served(team()):
                await stack.enter_async_context(BudgetLedger().hold(FREE, 1, 1, "a"))
