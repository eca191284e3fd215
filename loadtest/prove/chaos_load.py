"""Clients of a server whose processes are killed: the outcome of each request, and for how long short
requests fail.
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

import aiohttp

from loadtest.rig.routers import RouterAnswer, ask

ARRIVE_IN_S = 3.0
"""Seconds over which the workflows start."""
PROBED_EVERY_S, PROBED_AFTER_S = 0.1, 5.0
"""Seconds between two short requests, and seconds for which they continue after the last workflow."""
ENDED = frozenset({"lost", "cancelled", "finished", "failed"})
"""Allowed states of a run whose proxy died. The router cannot distinguish this from a client that
disconnects.
"""
LOST = frozenset({"lost", "finished"})
"""Allowed states of a run's record if the run's router died. The run may have finished just before."""
ASKED_AGAIN = 60
"""Number of times that a stream is sent again, once per second. Ray Serve replaces a proxy in half a minute."""


@dataclass
class ChaosResult:
    """Result of a round. A repeated stream has an `Idempotency-Key` and is sent again until it is complete.

    Args:
        finished: the number of complete answers at the first attempt, and of accepted background runs.
        clear_errors: the number of single requests that ended with a clear error, by error code.
        broken_connections: the number of single requests whose connection broke midway.
        not_connected: the number of connections that were refused, or closed before a status arrived.
        wrongly_complete: the number of streams whose transfer ended normally although the answer was
            incomplete.
        accepted_ids: the ids of the accepted background runs, which must finish whatever is killed.
        service_restored_s: the seconds from the kill to the end of the last short request to a scripted
            worker that failed, or 0 if none failed.
        process_replaced_s: the seconds from the kill until there are as many live processes of the kind as
            before.
    """

    workflows: int = 0
    finished: int = 0
    clear_errors: Counter[str] = field(default_factory=Counter[str])
    broken_connections: int = 0
    not_connected: int = 0
    wrongly_complete: int = 0
    recovered_streams: int = 0
    given_up: int = 0
    durable_runs: dict[str, int] = field(default_factory=dict[str, int])
    records_of_broken_runs: Counter[str] = field(default_factory=Counter[str])
    broken_ids: list[str] = field(default_factory=list[str])
    accepted_ids: list[str] = field(default_factory=list[str])
    accepted_background_runs: Counter[str] = field(default_factory=Counter[str])
    service_restored_s: float = 0.0
    engine_restored_s: float = 0.0
    process_replaced_s: float = 0.0
    still_running: int = 0

    def is_right(self, records: frozenset[str] = ENDED) -> bool:
        """Return whether the round kept all promises. Records of broken runs must be in `records`."""
        ended = set(self.durable_runs) | set(self.accepted_background_runs)
        went_on = not (self.given_up or self.still_running) and ended <= {"finished"}
        return went_on and not self.wrongly_complete and set(self.records_of_broken_runs) <= records


class ChaosLoad:
    """Workflows and short requests of one round.

    Half of the workflows are streams that are sent once. A quarter are streams with an `Idempotency-Key` that
    are sent again until complete. A quarter are background runs.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self.killed_s = float("inf")
        """Time of the kill, by the monotonic clock."""
        self._name = f"{time.time_ns()}"
        self.result = ChaosResult()

    async def run(self, workflows: int) -> None:
        """Run all workflows, and send short requests during them and for a while after the last one."""
        self.result.workflows = workflows
        probe = asyncio.create_task(self._probe())
        async with asyncio.TaskGroup() as group:
            for number in range(workflows):
                group.create_task(self._begin(number, ARRIVE_IN_S * number / workflows))
        await asyncio.sleep(PROBED_AFTER_S)
        probe.cancel()
        await asyncio.wait([probe])

    async def _begin(self, number: int, after_s: float) -> None:
        await asyncio.sleep(after_s)
        model = "with-engine" if number % 8 >= 4 else "scripted"
        match number % 4:
            case 0:
                await self._ask_kept(model, number)
            case 1:
                self._count(await ask(self._session, self._url, model, background=True))
            case _:
                self._count(await ask(self._session, self._url, model, stream=True))

    async def _ask_kept(self, model: str, number: int) -> None:
        headers = {"idempotency-key": f"{self._name}-{number}"}
        for again in range(ASKED_AGAIN):
            answer = await ask(self._session, self._url, model, stream=True, headers=headers)
            self.result.wrongly_complete += answer.ends_early
            if answer.is_whole:
                self.result.finished += not again
                self.result.recovered_streams += bool(again)
                return
            await asyncio.sleep(1)
        self.result.given_up += 1

    def _count(self, answer: RouterAnswer) -> None:
        self.result.wrongly_complete += answer.ends_early
        if answer.status == 202:
            self.result.accepted_ids.append(answer.run_id)
        if answer.is_whole or answer.status == 202:
            self.result.finished += 1
        elif answer.ends_early:
            self.result.broken_ids.append(answer.run_id)
        elif answer.is_broken and answer.status:
            self.result.broken_connections += 1
            self.result.broken_ids.append(answer.run_id)
        elif answer.is_broken:
            self.result.not_connected += 1
        else:
            self.result.clear_errors[answer.code or str(answer.status)] += 1

    async def _probe(self) -> None:
        while True:
            self.result.service_restored_s = await self._probe_with("first") or self.result.service_restored_s
            self.result.engine_restored_s = await self._probe_with("engine") or self.result.engine_restored_s

    async def _probe_with(self, model: str) -> float:
        """Send a short request. If it fails, return the seconds since the kill, else 0."""
        await asyncio.sleep(PROBED_EVERY_S)
        try:
            async with asyncio.timeout(PROBED_AFTER_S):
                is_whole = (await ask(self._session, self._url, model, max_tokens=1)).is_whole
        except TimeoutError:
            is_whole = False
        return 0.0 if is_whole else max(0.0, time.monotonic() - self.killed_s)
