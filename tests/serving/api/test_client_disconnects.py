"""Clients that disconnect at any moment: no run, call, held cent, task or span remains, and the record says so. Waits
are for states. The last worker never ends on its own, so every disconnect is an early one.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from conductor.run.event_log import ROOM
from conductor.run.record import Record
from serving.accounts.caller import ANONYMOUS
from serving.batches.memory_store import MemoryBatchStore
from serving.edge.exchange import PIECE_BYTES
from tests.serving.api.served import ASK, PRICE, Json, Served, plan, scripted, served, step, team
from tests.serving.spans import SPANS
from tests.states import until

DAG = plan(step("a", "One."), step("b", "Two."), step("c", "Join.", [0, 1]), step("a", "Conclude.", [2]))
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PODIUM = {"progress": "events", "max_cost_usd": 5}


def endless(*plans: str) -> Json:
    """Return settings in which `a` answers its inner step and stalls in the last. Every step takes a little time."""
    workers = [
        scripted(
            "a",
            "First things.",
            {"text": "one two three four", "stall_after_tokens": 3},
            delay_s=0.004,
            price=PRICE,
        ),
        scripted("b", "Second things.", delay_s=0.008, tokens_per_s=500, price=PRICE),
        scripted("c", "Joined.", delay_s=0.004, price=PRICE),
    ]
    settings = team(*(plans or (DAG,)), workers=workers, limits={"first_byte_s": 0, "heartbeat_s": 5})
    settings["workers"][0]["tokens_per_s"] = 2000
    return settings


async def reset(api: Served) -> None:
    for name in ("conductor", "a", "b", "c"):
        api.worker(name)._turn = 0
    SPANS.clear()


async def read_and_leave(api: Served, events: int) -> tuple[str, int]:
    """Read `events` events and disconnect. Return the run's id and the number of events."""
    n_events = 0
    body = ASK | {"stream": True, "podium": PODIUM}
    async with api.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        id = answer.headers["x-podium-workflow-id"]
        if events:
            async for line in answer.aiter_lines():
                n_events += line.startswith("data: ")
                if n_events == events:
                    break
    return id, n_events


async def test_a_client_may_leave_a_stream_at_every_event():
    async with served(endless()) as api:
        # The role; two of the plan; four of each step except the last one's end; three words.
        n_whole = 1 + 2 + 4 * 4 - 1 + 3
        for events in range(n_whole + 1):
            await reset(api)
            id, n_events = await read_and_leave(api, events)
            assert n_events == events
            await api.quiet()
            record = await api.record(id)
            assert record["status"] == "cancelled", events
            assert all(s["status"] != "running" for s in record["steps"]), (events, record["steps"])
            root = SPANS.named("invoke_workflow")[0]
            assert (root.attributes or {})["podium.status"] == "cancelled"
        assert record["steps"][3]["status"] == "cancelled"
        assert record["steps"][3]["output"] == "one two three"
        assert api.ledgers, "there was something to be held"
        assert sum(ledger.spent_usd for ledger in api.ledgers) > 0


def steps_where(record: Record, true: Callable[[Any], object]) -> int:
    return sum(bool(true(each)) for each in (record.plans[0].steps if record.plans else ()))


STATES: dict[str, Callable[[Record], object]] = {
    "began": lambda record: True,
    "the plan began": lambda record: record.plans,
    "a step was planned": lambda record: steps_where(record, lambda s: True) >= 1,
    "two steps were planned": lambda record: steps_where(record, lambda s: True) >= 2,
    "a step began": lambda record: steps_where(record, lambda s: s.started_s is not None) >= 1,
    "two steps began": lambda record: steps_where(record, lambda s: s.started_s is not None) >= 2,
    "a step spoke": lambda record: steps_where(record, lambda s: s.first_token_s is not None) >= 1,
    "a step ended": lambda record: steps_where(record, lambda s: s.status == "done") >= 1,
    "the plan was written": lambda record: record.plans and record.plans[0].ended_s is not None,
    "two steps ended": lambda record: steps_where(record, lambda s: s.status == "done") >= 2,
    "the third began": lambda record: steps_where(record, lambda s: s.started_s is not None) >= 3,
    "the third ended": lambda record: steps_where(record, lambda s: s.status == "done") >= 3,
    "the last began": lambda record: steps_where(record, lambda s: s.started_s is not None) >= 4,
    "the last spoke": lambda record: steps_where(record, lambda s: s.first_token_s is not None) >= 4,
}


async def leave_when(
    api: Served, body: Json, true: Callable[[Record], object], path: str = "/v1/chat/completions"
) -> str:
    """Send a request without streaming, and disconnect once `true` holds for the run's record."""
    asking = asyncio.create_task(api.http.post(path, json=ASK | body))
    turns = 0
    while not (api.service.running and true((await api.service.newest(1, ANONYMOUS)).runs[0].record)):
        assert not asking.done(), asking.result().text
        turns += 1
        await asyncio.sleep(
            0 if turns % 20 else 0.001
        )  # each turn is looked at, and time moves where they wait
    id = (await api.service.newest(1, ANONYMOUS)).runs[0].record.id
    asking.cancel()
    await asyncio.wait([asking])
    return id


async def test_a_client_may_leave_a_request_without_a_stream_at_every_state():
    async with served(endless()) as api:
        for name, true in STATES.items():
            await reset(api)
            id = await leave_when(api, {"podium": {"max_cost_usd": 5}}, true)
            await api.quiet()
            assert (await api.record(id))["status"] == "cancelled", name


async def test_leaving_while_waiting_for_a_slot():
    busy = scripted("a", {"text": "x y", "stall_after_tokens": 1}, max_concurrency=1)
    async with served(team(workers=[busy], workflows={})) as api:
        first = asyncio.create_task(api.http.post("/v1/chat/completions", json=ASK | {"model": "a"}))
        await until(lambda: api.worker("a").open_calls == 1)
        await leave_when(
            api,
            {"model": "a"},
            lambda record: api.service.running == 2 and record.plans and record.plans[0].steps,
        )
        await until(lambda: api.service.running == 1)
        assert len(api.worker("a").calls) == 1
        first.cancel()
        await asyncio.wait([first])
        await api.quiet()


async def test_leaving_during_the_wait_for_a_retry():
    busy = scripted("a", {"error": "busy", "retry_after_s": 60}, retry={"max_wait_s": 100})
    async with served(team(workers=[busy], workflows={})) as api:
        id = await leave_when(
            api, {"model": "a"}, lambda _: api.worker("a").calls and not api.worker("a").open_calls
        )
        await api.quiet()
        assert (await api.record(id))["status"] == "cancelled"
        assert len(api.worker("a").calls) == 1


async def test_leaving_during_the_wait_for_budget():
    """Two parallel steps, with budget for one: the second waits until the first has settled."""
    price = {"input_usd_per_mtok": 0, "output_usd_per_mtok": 1000}
    both = [
        scripted(name, {"text": "x y", "stall_after_tokens": 1}, price=price, max_output_tokens=1000)
        for name in ("a", "b")
    ]
    async with served(team(workers=both, workflows={})) as api:
        own = {"plan": [step("a"), step("b"), step("a", "Join.", [0, 1])], "max_cost_usd": 1.5}
        await leave_when(
            api,
            {"podium": own},
            lambda record: steps_where(record, lambda s: s.first_token_s is not None) == 1,
        )
        assert any(ledger.on_hold_usd for ledger in api.ledgers)
        await api.quiet()
        assert len(api.worker("a").calls) + len(api.worker("b").calls) == 1


async def test_leaving_a_fallback_and_a_second_round():
    for plans, model in [(("nonsense",), "mini"), ((DAG, DAG), "ultra")]:
        async with served(endless(*plans)) as api:
            api.worker("a")._turn = 1
            id = await leave_when(api, {"model": model}, lambda record: api.worker("a").open_calls == 1)
            await api.quiet()
            assert (await api.record(id))["status"] == "cancelled"


async def test_leaving_during_a_plan_only_request():
    settings = team()
    settings["workers"][0]["delay_s"] = 30
    async with served(settings) as api:
        id = await leave_when(api, {}, lambda _: api.worker("conductor").open_calls == 1, "/v1/plans")
        await api.quiet()
        assert (await api.record(id))["status"] == "cancelled"


async def test_many_clients_that_leave_at_the_same_time_leave_no_runs():
    async with served(endless()) as api:
        asking = [
            asyncio.create_task(api.http.post("/v1/chat/completions", json=ASK | {"stream": True}))
            for _ in range(40)
        ]
        await until(lambda: api.service.running == 40)
        for each in asking:
            each.cancel()
        await asyncio.wait(asking)
        await api.quiet()
        listed = (await api.http.get("/v1/workflows?limit=100")).json()["data"]
    assert {each["status"] for each in listed} <= {"cancelled"}
    assert len(listed) == 40


ENDLESS = f"{'x' * 5000} " * 4000


@asynccontextmanager
async def slow_client(api: Served, headers: bytes = b"", *, n: int = 1) -> AsyncGenerator[Streams]:
    """Open a connection with a tiny receive buffer that requests `n` long answers."""
    body = b'{"model": "a", "n": %d, "stream": true, "messages": [{"role": "user", "content": "x"}]}' % n
    async with slow_request(
        api,
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"%scontent-length: %d\r\n\r\n%s" % (headers, len(body), body),
    ) as streams:
        yield streams


@asynccontextmanager
async def slow_request(api: Served, request: bytes) -> AsyncGenerator[Streams]:
    """Open such a connection for any request."""
    host, port = api.url.removeprefix("http://").split(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((host, int(port)))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    writer.write(request)
    try:
        await reader.readuntil(b"\r\n")
        yield reader, writer
    finally:
        writer.transport.abort()


def long_answer(**limits: float) -> Json:
    worker = scripted("a", ENDLESS, "Done.", max_concurrency=1)
    return team(workers=[worker], workflows={}, limits={"first_byte_s": 0} | limits)


async def test_a_client_that_does_not_read_slows_the_worker_and_can_leave():
    async with served(long_answer()) as api:
        async with slow_client(api):
            await until(lambda: api.service.running == 1)
            outbox = next(iter(api.service.sessions.running.values())).answer
            await until(lambda: outbox.is_full, "the worker waits for the client")
            assert len(outbox._events) <= ROOM + 5
        await api.quiet()
        record = await api.record((await api.newest())["id"])
    assert (record["status"], record["error"]) == ("cancelled", None)
    assert len(record["steps"][0]["output"]) < 1_000_000, "the kernel alone would take megabytes"


async def test_a_client_that_does_not_read_for_too_long_loses_its_slot():
    async with served(long_answer(unread_s=1)) as api:
        async with slow_client(api) as (reader, _):
            await until(lambda: api.service.running == 1)
            id = next(iter(api.service.sessions.running))
            assert (await api.ok({"model": "a"}))["choices"][0]["message"]["content"] == "Done."
            with pytest.raises(ConnectionResetError):
                await reader.read()
        record = await api.record(id)
        events = (await api.http.get(f"/v1/workflows/{id}/events")).text
    assert record["status"] == "cancelled"
    assert record["error"]["code"] == "cancelled"
    assert record["error"]["message"] == "The client has not read its response for 1 s."
    assert record["steps"][0]["output"].startswith("xxx")
    assert record["error"]["message"] in events


async def test_a_client_that_does_not_read_two_answers_loses_both_runs():
    worker = scripted("a", ENDLESS)
    async with served(team(workers=[worker], workflows={}, limits={"unread_s": 1})) as api:
        async with slow_client(api, n=2) as (reader, _):
            await until(lambda: api.service.running == 2)
            ids = list(api.service.sessions.running)
            await until(lambda: api.service.running == 0)
            with pytest.raises(ConnectionResetError):
                await reader.read()
        records = [await api.record(id) for id in ids]
    assert [record["status"] for record in records] == ["cancelled"] * 2
    assert {record["error"]["message"] for record in records} == {"The client has not read its response for 1 s."}  # fmt: skip


@pytest.mark.real_time
async def test_a_client_that_reads_slowly_is_not_disconnected():
    async with served(long_answer(unread_s=1)) as api:
        async with slow_client(api) as (reader, _):
            outbox = next(iter(api.service.sessions.running.values())).answer
            await until(lambda: outbox.is_full, "the worker waits for the client")
            for _ in range(14):
                await asyncio.sleep(0.1)
                assert await reader.read(4096)
            assert api.service.running == 1
        await api.quiet()
        assert (await api.newest())["error"] is None


async def test_a_background_run_continues_although_its_client_does_not_read():
    async with served(long_answer(unread_s=1)) as api:
        async with slow_client(api, b"idempotency-key: mine\r\n"):
            await until(lambda: api.service.running == 1)
            await until(lambda: api.service.running == 0)
        assert (await api.newest())["status"] == "finished"


LONG = 5_000_000


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


def waiting_bytes(api: Served) -> int:
    """Return the most bytes that the server buffers for a client."""
    transports = [each.transport for each in api.connections if each.transport]
    return max((each.get_write_buffer_size() for each in transports if not each.is_closing()), default=0)


async def most_waiting_bytes(api: Served) -> int:
    """Return the maximum of `waiting_bytes` until the server drops the client."""
    await until(lambda: waiting_bytes(api), "something waits")
    most = 0
    while n_bytes := waiting_bytes(api):
        most = max(most, n_bytes)
        await asyncio.sleep(0.01)
    return most


async def upload(api: Served, content: bytes) -> str:
    form = {"data": {"purpose": "user_data"}, "files": {"file": ("a.bin", content)}}
    return (await api.http.post("/v1/files", **form)).json()["id"]


async def long_run(api: Served) -> str:
    return (await api.ok({"model": "a"}))["podium"]["workflow_id"]


def long_record(**limits: float) -> Json:
    worker = scripted("a", "x" * LONG)
    return team(workers=[worker], workflows={}, limits={"heartbeat_s": 60} | limits)


def has_feed() -> bool:
    """Return whether a task reads a run's events for its watchers."""
    return any("feed of" in each.get_name() for each in asyncio.all_tasks())


@pytest.mark.parametrize("path", ["/v1/workflows/{id}", "/v1/workflows/{id}/events"])
async def test_records_and_events_are_buffered_in_pieces_for_a_stalled_client(path: str):
    async with served(long_record(unread_s=1)) as api:
        id = await long_run(api)
        assert len((await api.http.get(path.format(id=id))).content) > LONG, "it is whole for who reads"
        async with slow_request(api, get(path.format(id=id))) as (reader, _):
            assert has_feed() == path.endswith("/events")
            assert await most_waiting_bytes(api) < 3 * PIECE_BYTES
            with pytest.raises(ConnectionResetError):
                await reader.read()
        await until(lambda: not has_feed(), "nobody watches")


async def test_a_file_is_buffered_in_pieces_for_a_client_that_does_not_read():
    content = bytes(range(256)) * 80_000
    async with served(long_record(unread_s=1)) as api:
        id, store = await upload(api, content), api.batches.store
        assert isinstance(store, MemoryBatchStore)
        read, whole = list[int](), store.piece

        async def piece(id: str, begin: int, n_bytes: int) -> bytes | None:
            read.append(begin)
            return await whole(id, begin, n_bytes)

        store.piece = piece
        path = f"/v1/files/{id}/content"
        answer = await api.http.get(path)
        assert (answer.content == content, answer.headers["content-length"]) == (True, str(len(content)))
        assert len(read) == 20
        read.clear()
        async with slow_request(api, get(path)) as (reader, _):
            assert await most_waiting_bytes(api) < 3 * PIECE_BYTES
            with pytest.raises(ConnectionResetError):
                await reader.read()
        assert len(read) < 6, "the rest was never read"
        store._files[id] = (store._files[id][0], content[:2_000_000])
        with pytest.raises(httpx2.RemoteProtocolError):  # the rest of the file is missing
            await api.http.get(path)


@pytest.mark.real_time
async def test_a_client_that_reads_a_file_slowly_is_not_disconnected():
    async with served(long_record(unread_s=1)) as api:
        id = await upload(api, b"\xff" * LONG)
        async with slow_request(api, get(f"/v1/files/{id}/content")) as (reader, _):
            for _ in range(15):
                await asyncio.sleep(0.1)
                assert await reader.read(4096)


async def test_large_responses_share_a_memory_limit_and_further_ones_return_429():
    async with served(long_record(unread_s=2, max_unread_bytes=2 * LONG)) as api:
        path = f"/v1/workflows/{await long_run(api)}"
        async with slow_request(api, get(path)):
            refused = await api.http.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
            assert (refused.headers["retry-after"], refused.headers["x-should-retry"]) == ("2", "true")
            assert refused.json()["error"]["param"] == "limits.max_unread_bytes"
            assert (await api.http.get("/v1/models")).status_code == 200, "what is small is told"
            answers = list[int]()
            while 200 not in answers:  # until the server drops the other client
                answers.append((await api.http.get(path)).status_code)
                await asyncio.sleep(0.1)
            assert set(answers) == {429, 200}


async def test_a_client_that_stays_gets_a_finished_record_and_ended_spans():
    async with served(team()) as api:
        id = (await api.ok())["podium"]["workflow_id"]
        await api.quiet()
        assert (await api.record(id))["status"] == "finished"
        assert [span.name for span in SPANS.named("")] == [
            "invoke_workflow mini",
            "plan conductor",
            "chat a",
            "chat b",
        ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_run_leaves_no_tasks_and_its_span_names_the_error(stream: bool):
    workers = [
        scripted("a", {"error": "refused"}, delay_s=0.01),
        scripted("b", "x", delay_s=30),
        scripted("c"),
    ]
    async with served(team(DAG, workers=workers, limits={"first_byte_s": 10})) as api:
        answer = await api.post({"stream": stream})
        await api.quiet()
        root = SPANS.named("invoke_workflow")[0]
    assert answer.status_code == 400, "a step was paid"
    assert (root.attributes or {})["error.type"] == "WorkerRefused"
    assert (root.attributes or {})["podium.status"] == "failed"
