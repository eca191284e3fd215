"""The registry of runs: its contents, lifetimes and notifications by the store."""

import asyncio
from collections.abc import Sequence
from typing import Any

from serving.accounts.caller import ANONYMOUS
from serving.api.dialects.chat.dialect import ChatDialect
from serving.api.resolve import resolve
from serving.pool import build_pool
from serving.sessions.service import Service
from serving.sessions.session import RunSpec
from serving.settings.settings import parse
from serving.store.rows import Item
from tests.states import until

BODY = b'{"model": "a", "messages": [{"role": "user", "content": "hi"}]}'
STALLS: dict[str, Any] = {"text": "x y", "stall_after_tokens": 1}


def service_of(*replies: Any) -> Service:
    settings = {"workers": [{"name": "a", "kind": "scripted", "replies": list(replies)}]}
    return Service(build_pool(parse(settings), {}, engines={}))


def spec_of(service: Service, id: str = "wf_1") -> RunSpec:
    resolved = resolve(ChatDialect().parse(BODY), service.pool)
    return RunSpec(id, resolved.task, resolved.team, resolved.pool)


class Notes:
    def __init__(self) -> None:
        self.seqs, self.is_over = list[int](), False

    def hear(self, items: Sequence[Item]) -> None:
        self.seqs += [item.seq for item in items]
        self.is_over |= not items


async def test_a_session_ends_with_its_last_user() -> None:
    service = service_of("Yes.")
    sessions, notes = service.sessions, Notes()
    with sessions.watch("wf_1", notes):
        async with sessions.start(spec_of(service), ANONYMOUS) as session:
            assert list(sessions.running) == ["wf_1"]
            with sessions.open("wf_1") as same:
                assert same is session
            async for _ in session.run.events():
                pass
        assert (sessions.running, sessions.is_idle) == ({}, False), "it is watched"
    assert sessions.is_idle
    assert notes.is_over
    assert notes.seqs == sorted(notes.seqs)


async def test_a_run_releases_its_slot_and_bytes_when_it_is_stored() -> None:
    service = service_of("Yes.")
    slots = service.sessions.admission.slots
    async with service.sessions.start(spec_of(service), ANONYMOUS) as session:
        assert slots.n_taken == 1
        async for _ in session.run.events():
            pass
    assert slots.n_taken == 0
    assert (await service.store.get("wf_1")) is not None


async def test_a_background_run_outlives_its_client_and_detaches_at_shutdown() -> None:
    service = service_of(STALLS)
    sessions = service.sessions
    run = await sessions.start_kept(spec_of(service), ANONYMOUS)
    run.answer.close()
    assert sessions.owns("wf_1")
    await service.aclose()
    assert (run.record.status, sessions.is_idle) == ("detached", True)


async def test_a_run_taken_over_by_another_replica_detaches_and_a_cancelled_one_ends() -> None:
    service = service_of(STALLS, STALLS)
    sessions = service.sessions
    runs = [await sessions.start_kept(spec_of(service, id), ANONYMOUS) for id in ("wf_1", "wf_2")]
    sessions.on_taken_over("wf_1")
    sessions.on_cancel("wf_2")
    sessions.on_cancel("wf_3")  # a run that is not here
    await until(lambda: sessions.is_idle, "both have ended here")
    assert [run.record.status for run in runs] == ["detached", "cancelled"]


async def test_a_background_run_continues_if_its_client_leaves_at_the_start() -> None:
    service = service_of("Yes.")
    beginning = asyncio.create_task(service.sessions.start_kept(spec_of(service), ANONYMOUS))
    await asyncio.sleep(0)
    beginning.cancel()
    await asyncio.wait([beginning])
    assert beginning.cancelled()
    await until(lambda: service.sessions.is_idle, "it has ended by itself")
    records = await service.store.get("wf_1")
    assert records is not None
    assert records.record.status == "finished"
