"""Clients of a server of which something is killed: what each was told, and how long short requests failed."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

import aiohttp

from loadtest.rig.routers import RouterAnswer, ask

ARRIVE_IN_S = 3.0
"""That all workflows begin in."""
PROBED_EVERY_S, PROBED_AFTER_S = 0.1, 5.0
"""Short requests are sent so often; for so long after the last workflow."""
ENDED = frozenset({"lost", "cancelled", "finished", "failed"})
"""What the record of a run may say whose transfer broke, where a proxy died: a router cannot tell that from a client that leaves."""
LOST = frozenset({"lost", "finished"})
"""The same where its router died: it may just have ended."""
ASKED_AGAIN = 60
"""How often a kept stream is sent again, a second apart: Ray Serve takes half a minute to replace a proxy."""


@dataclass
class ChaosFound:
    """What came of a round.

    Args:
        finished: of those sent once, whole answers; and those in the background that were taken.
        failed: of those sent once, ended by an error that says so, by its code.
        broken: of those sent once, connections that broke in the middle.
        not_let_in: connections that were refused or closed before an answer's status.
        looked_whole: streams whose transfer ended well and whose answer did not.
        recovered: kept streams that broke or failed, and were whole when they were sent again.
        given_up: kept streams that were never whole.
        kept: runs that outlive their clients, by how they ended.
        records: of the broken ones, what their records say.
        accepted_ids: runs in the background that were taken: whatever dies then, they finish.
        accepted: how those ended.
        back_s: from the kill to the end of the last short request to a scripted worker that failed; 0: none did.
        engine_back_s: the same of requests to the engine.
        replaced_s: from the kill until as many processes of the kind live as before.
        still_running: runs that did not end.
    """

    workflows: int = 0
    finished: int = 0
    failed: Counter[str] = field(default_factory=Counter[str])
    broken: int = 0
    not_let_in: int = 0
    looked_whole: int = 0
    recovered: int = 0
    given_up: int = 0
    kept: dict[str, int] = field(default_factory=dict[str, int])
    records: Counter[str] = field(default_factory=Counter[str])
    broken_ids: list[str] = field(default_factory=list[str])
    accepted_ids: list[str] = field(default_factory=list[str])
    accepted: Counter[str] = field(default_factory=Counter[str])
    back_s: float = 0.0
    engine_back_s: float = 0.0
    replaced_s: float = 0.0
    still_running: int = 0

    def is_right(self, records: frozenset[str] = ENDED) -> bool:
        """Whether nothing that was cut looked whole, its record says one of `records`, and all that was to go on did."""
        ended = set(self.kept) | set(self.accepted)
        went_on = not (self.given_up or self.still_running) and ended <= {"finished"}
        return went_on and not self.looked_whole and set(self.records) <= records

    @property
    def cells(self) -> list[str]:
        """For the table."""
        again = f"{self.recovered}" + (f", {self.given_up} not" if self.given_up else "")
        kept = self.kept | ({"running": self.still_running} if self.still_running else {})
        return [
            *(str(self.workflows), str(self.finished), _said(self.failed), str(self.broken)),
            *(
                str(self.not_let_in),
                str(self.looked_whole),
                _said(self.records),
                _said(kept),
                _said(self.accepted),
                again,
            ),
            *(f"{each:.1f}" for each in (self.back_s, self.engine_back_s, self.replaced_s)),
        ]


def _said(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {what}" for what, n in sorted(counts.items())) or "0"


class ChaosLoad:
    """Workflows and short requests of one round. Half of the workflows are streams that are sent once, a quarter
    streams with an `Idempotency-Key` that are sent again until they are whole, a quarter runs in the background.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self._killed_s = float("inf")
        self._name = f"{time.time_ns()}"
        self.found = ChaosFound()

    def note_kill(self, at_s: float) -> None:
        """It was at this monotonic time."""
        self._killed_s = at_s

    async def run(self, workflows: int) -> None:
        """All of them, and short requests beside them and a little longer."""
        self.found.workflows = workflows
        probes = asyncio.create_task(self._probe())
        async with asyncio.TaskGroup() as group:
            for number in range(workflows):
                group.create_task(self._begin(number, ARRIVE_IN_S * number / workflows))
        await asyncio.sleep(PROBED_AFTER_S)
        probes.cancel()
        await asyncio.wait([probes])

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
            self.found.looked_whole += answer.ends_early
            if answer.is_whole:
                self.found.finished += not again
                self.found.recovered += bool(again)
                return
            await asyncio.sleep(1)
        self.found.given_up += 1

    def _count(self, answer: RouterAnswer) -> None:
        self.found.looked_whole += answer.ends_early
        if answer.status == 202:
            self.found.accepted_ids.append(answer.run_id)
        if answer.is_whole or answer.status == 202:
            self.found.finished += 1
        elif answer.ends_early:
            self.found.broken_ids.append(answer.run_id)
        elif answer.is_broken and answer.status:
            self.found.broken += 1
            self.found.broken_ids.append(answer.run_id)
        elif answer.is_broken:
            self.found.not_let_in += 1
        else:
            self.found.failed[answer.code or str(answer.status)] += 1

    async def _probe(self) -> None:
        while True:
            self.found.back_s = await self._probe_with("first") or self.found.back_s
            self.found.engine_back_s = await self._probe_with("engine") or self.found.engine_back_s

    async def _probe_with(self, model: str) -> float:
        """Seconds since the kill if it failed, else 0."""
        await asyncio.sleep(PROBED_EVERY_S)
        try:
            async with asyncio.timeout(PROBED_AFTER_S):
                is_whole = (await ask(self._session, self._url, model, max_tokens=1)).is_whole
        except TimeoutError:
            is_whole = False
        return 0.0 if is_whole else max(0.0, time.monotonic() - self._killed_s)
