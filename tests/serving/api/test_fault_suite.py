"""Every fault of a provider, wherever it stands in a run: the client sees what the table says, and nothing hangs."""

import asyncio

import pytest

from tests.serving.api.play_faults import see_everything
from tests.serving.api.provider_faults import CASES
from tests.serving.api.served import left_tasks
from tests.serving.spans import SPANS
from tests.serving.states import until


@pytest.mark.timeout(400)
async def test_every_fault_of_a_provider_ends_as_expected_in_every_position():
    assert len(CASES) >= 60
    seen = await asyncio.wait_for(see_everything(half=True), 300)
    assert [each for each in seen if not each.is_expected] == []
    await until(lambda: not left_tasks(), "no task is left")
    await until(lambda: not SPANS.open, "no span is left")
