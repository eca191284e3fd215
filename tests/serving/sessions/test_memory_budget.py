"""Memory budget of current requests. A request that does not fit is rejected before it reads or calls anything."""

import asyncio
import gc
import sys
from pathlib import Path

import httpx2
import pytest

from conductor.errors import Overloaded
from conductor.model.messages import File, Message, Native, Text
from conductor.run.record import NO_ACCOUNT, Account
from serving.batches.memory_store import MemoryBatchStore
from serving.sessions.run_admission import SMALL_BYTES, MemoryBudget, bytes_of
from serving.settings.settings import parse
from tests.databases import make_file
from tests.serving.api.served import Json, Served, scripted, served, team
from tests.serving.store.stores import replicas
from tests.states import until

PICTURE = "data:image/png;base64," + 100_000 * "A"
PDF = b"%PDF-1.7\n" + 75_000 * b"\xff"
SHOWN: Json = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}]}  # fmt: skip
LONG_QUESTION = "Why is the sky blue? " * 10_000
FLOOD, MODEST = Account("flood"), Account("modest")
SETTINGS = parse({"workers": [scripted("a")], "limits": {"max_running_bytes": 1_000_000}})


def slow_team() -> Json:
    """Return settings with room for one of these pictures or files."""
    worker = scripted("a", "Yes.", delay_s=30, sees_images=True, reads_pdfs=True)
    quick = scripted("b", "Yes.", sees_images=True)
    return team(workers=[worker, quick], workflows={}, limits={"max_running_bytes": 150_000})


async def upload(api: Served) -> str:
    form = {"data": {"purpose": "user_data"}, "files": {"file": ("a.pdf", PDF)}}
    return (await api.http.post("/v1/files", **form)).json()["id"]  # type: ignore[arg-type]


def naming(id: str, times: int = 1) -> Json:
    return {"messages": [{"role": "user", "content": times * [{"type": "file", "file": {"file_id": id}}]}]}


def check_rejected(answer: httpx2.Response) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "overloaded")
    assert int(answer.headers["retry-after"]) >= 1


async def test_images_over_the_memory_budget_are_rejected_until_a_run_has_ended() -> None:
    async with served(slow_team()) as api:
        first = asyncio.create_task(api.post(SHOWN | {"model": "a"}))
        await until(lambda: len(api.worker("a").calls) == 1)
        check_rejected(await api.post(SHOWN | {"model": "b"}))
        assert not api.worker("b").calls, "nobody was called"
        await api.ok({"model": "b"})
        first.cancel()
        await until(lambda: api.service.running == 0)
        await api.ok(SHOWN | {"model": "b"})


class ReadFiles(MemoryBatchStore):
    n_read = 0

    async def content(self, id: str) -> bytes | None:
        self.n_read += 1
        return await super().content(id)


async def test_a_stored_file_is_not_read_for_a_rejected_request() -> None:
    files = ReadFiles()
    async with served(slow_team(), batch_store=files) as api:
        body = naming(await upload(api)) | {"model": "a"}
        first = asyncio.create_task(api.post(body))
        await until(lambda: len(api.worker("a").calls) == 1)
        check_rejected(await api.post(body))
        assert files.n_read == 1
        first.cancel()


async def test_a_file_counts_each_time_a_request_references_it() -> None:
    async with served(slow_team() | {"limits": {"max_body_bytes": 160_000}}) as api:
        assert (await api.post(naming(await upload(api), 3) | {"model": "a"})).status_code == 413


def test_a_single_large_request_and_small_ones_are_admitted() -> None:
    memory = MemoryBudget(lambda: SETTINGS)
    with memory.hold(FLOOD, 5_000_000, "interactive"):
        memory.check(FLOOD, SMALL_BYTES, "interactive")
        with pytest.raises(Overloaded):
            memory.check(MODEST, SMALL_BYTES + 1, "interactive")
    memory.check(MODEST, SMALL_BYTES + 1, "interactive")


def test_the_last_tenth_of_the_memory_is_reserved_and_flex_gets_half() -> None:
    memory = MemoryBudget(lambda: SETTINGS)
    with memory.occupy(FLOOD, 400_000), memory.occupy(FLOOD, 400_000):
        with pytest.raises(Overloaded):
            memory.check(FLOOD, 150_000, "interactive")
        memory.check(MODEST, 150_000, "interactive")
        memory.check(NO_ACCOUNT, 150_000, "interactive")
        with pytest.raises(Overloaded):
            memory.check(MODEST, 150_000, "batch")


def test_every_part_of_a_conversation_counts_towards_the_memory() -> None:
    long = 1000 * "x"
    native = Native("a", "", {"thoughts": [{"signature": long}]})
    turns = [Message("user", (Text(long), File("f", url=long))), Message("assistant", (), native)]
    assert bytes_of(turns) >= 3000


async def test_a_finished_and_stored_runs_texts_leave_memory_immediately(tmp_path: Path) -> None:
    settings: Json = team(workers=[scripted("a", "One two three.", tokens_per_s=20)], workflows={})
    async with replicas(make_file(tmp_path / "podium.db"), settings, n=1) as [one]:
        asking = asyncio.create_task(
            one.api.ok({"model": "a", "messages": [{"role": "user", "content": LONG_QUESTION}]})
        )
        await until(lambda: bool(one.api.service.sessions.running), "the run has begun")
        [run] = one.api.service.sessions.running.values()
        [part] = run.record.task.conversation[0].parts
        assert isinstance(part, Text)
        text = part.text
        gc.disable()
        try:
            del run, part
            await asking
            await one.api.quiet()
            await until(lambda: not one.records.n_unwritten, "the run is written")
            one.api.worker("a").calls.clear()
            assert sys.getrefcount(text) == 2, "only this test refers to the text"
        finally:
            gc.enable()
