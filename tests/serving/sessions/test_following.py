"""Following and cancelling a run from any replica."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from conductor.errors import StoreUnavailable
from serving.database.address import Address
from serving.store.store import EventPage
from tests.serving.api.served import ASK, PRICE, Json, Served, answer_text, parsed, scripted, served, team
from tests.serving.store.stores import replicas
from tests.states import until

SLOW = team(
    workers=[
        scripted("a", "A reason.", price=PRICE),
        scripted("b", {"text": "one two three", "stall_after_tokens": 2}, price=PRICE),
        scripted("c"),
    ]
)
BEFORE_IT_STALLS = ["plan_began", "step_planned", "step_began", "step_planned", "plan_ended", "step_spoke", "step_ended", "step_began", "step_spoke"]  # fmt: skip


@asynccontextmanager
async def asking(api: Served, **body: Any) -> AsyncGenerator[tuple["asyncio.Task[httpx2.Response]", str]]:
    """Send a request, and yield its task and run id. The client disconnects at the end."""
    task = asyncio.create_task(api.http.post("/v1/chat/completions", json=ASK | body))
    try:
        await until(lambda: api.service.running == 1 and api.worker("b").open_calls == 1)
        yield task, next(iter(api.service.sessions.running))
    finally:
        task.cancel()
        await asyncio.wait([task])


def events_of(text: str) -> list[tuple[int | None, Json]]:
    events: list[tuple[int | None, Json]] = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        if "data" in fields:
            events.append((int(fields["id"]) if "id" in fields else None, json.loads(fields["data"])))
    return events


async def read(api: Served, id: str, until_n: int, **headers: str) -> list[tuple[int | None, Json]]:
    """Return the first `until_n` events of a stream."""
    lines: list[str] = []
    async with api.http.stream("GET", f"/v1/workflows/{id}/events", headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            lines.append(line)
            if sum(each.startswith("data: ") for each in lines) == until_n:
                return events_of("\n".join(lines))
    raise AssertionError(lines)


async def test_a_run_can_be_followed_and_the_stream_resumed_on_another_replica(
    store_address: Address,
) -> None:
    async with replicas(store_address, SLOW) as (one, other), asking(one.api) as (_, id):
        while (await other.api.http.get(f"/v1/workflows/{id}")).status_code == 404:
            await asyncio.sleep(0.01)
        asked_s = time.monotonic()
        events = await read(other.api, id, len(BEFORE_IT_STALLS) + 1)
        assert time.monotonic() - asked_s < 1, "the piece of text that was said before anybody watched"
        assert sorted(event["type"] for _, event in events) == sorted([*BEFORE_IT_STALLS, "answer"])
        assert (events[-1][1]["type"], events[-1][1]["text"]) == ("answer", "one "), (
            "a word waits for its end"
        )
        assert [event["output"] for _, event in events if event["type"] == "step_ended"] == ["A reason."]
        ids = [number for number, _ in events]
        assert ids == sorted(set(ids))
        again = await read(other.api, id, 4, **{"last-event-id": str(ids[5])})
        assert again == events[6:]
        following = asyncio.create_task(other.api.http.get(f"/v1/workflows/{id}/events?after={ids[-1]}"))
        assert (await other.api.http.post(f"/v1/workflows/{id}/cancel", json={})).json()[
            "status"
        ] == "running"
        rest = events_of((await following).text)
        assert [event["type"] for _, event in rest] == ["step_lost", "answer", "cancelled", "end"]
        assert rest[1][1]["text"] == "two"
        assert rest[-1] == (None, {"type": "end", "status": "cancelled"})
        whole = events_of((await one.api.http.get(f"/v1/workflows/{id}/events")).text)
        assert whole == events + rest, "also once it has ended, and on its own replica"


PACED = team(
    workers=[
        scripted("a", "A reason.", price=PRICE),
        scripted("b", " ".join(f"word{n}" for n in range(60)), tokens_per_s=20, price=PRICE),
        scripted("c"),
    ]
)


@pytest.mark.parametrize("with_store", [True, False])
async def test_deltas_are_sent_to_watchers_and_not_stored(store_address: Address, with_store: bool) -> None:
    words = PACED["workers"][2]["replies"][0]
    if not with_store:
        async with served(PACED) as api, asking(api) as (_, id):
            assert answer_in(events_of((await api.http.get(f"/v1/workflows/{id}/events")).text)) == words
        return
    async with replicas(store_address, PACED) as (one, other):
        async with asking(one.api) as (unwatched, _):
            await unwatched
        async with asking(one.api) as (_, id):
            await until(
                lambda: (
                    (one.api.service.sessions.running[id].record.steps or [None])[-1].first_token_s
                    is not None
                )
            )
            while (await other.api.http.get(f"/v1/workflows/{id}")).status_code == 404:
                await asyncio.sleep(0.01)
            events = events_of((await other.api.http.get(f"/v1/workflows/{id}/events")).text)
        assert answer_in(events) == words
        assert len([event for _, event in events if event["type"] == "answer"]) > 2, "as it is said"
        pages = [
            await one.records.events(row[0], 0)
            for row in await one.rows("SELECT id FROM run ORDER BY made_us")
        ]
        texts = ["".join(getattr(item.event, "text", "") for item in page.items) for page in pages]
        assert texts == ["", words]


def answer_in(events: list[tuple[int | None, Json]]) -> str:
    return "".join(event["text"] for _, event in events if event["type"] == "answer")


async def test_every_replica_shows_a_failed_attempt_while_the_next_one_runs(
    store_address: Address,
) -> None:
    stalls = {"text": "one two three", "stall_after_tokens": 2}
    retry = {"attempts": 2, "first_wait_s": 0.01}
    again = scripted("b", {"error": "unavailable"}, stalls, price=PRICE, retry=retry)
    settings = team(workers=[scripted("a"), again, scripted("c")])
    async with replicas(store_address, settings) as (one, other), asking(one.api, model="b") as (_, id):

        async def attempts() -> list[str]:
            steps = (await other.api.http.get(f"/v1/workflows/{id}")).json().get("steps", [])
            return [each["error"] for step in steps for each in step["attempts"]]

        while not await attempts():
            await asyncio.sleep(0.02)
        assert await attempts() == ["WorkerUnavailable"]


async def test_an_invalid_event_id_is_rejected() -> None:
    async with served(team()) as api:
        id = (await api.ok())["podium"]["workflow_id"]
        for name in ("x", "-1", "9" * 20, "²"):
            answer = await api.http.get(
                f"/v1/workflows/{id}/events", headers={"last-event-id": name.encode("latin-1")}
            )
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Last-Event-ID")
        assert (await api.http.get("/v1/workflows/wf_9/events")).status_code == 404


async def test_without_a_database_the_runs_own_replica_has_its_events() -> None:
    async with served(team()) as api:
        id = (await api.ok())["podium"]["workflow_id"]
        events = [
            event["type"] for _, event in events_of((await api.http.get(f"/v1/workflows/{id}/events")).text)
        ]
    assert events[0] == "plan_began"
    assert events[-2:] == ["finished", "end"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_waits_for_a_cancelled_run_gets_the_cancellation(stream: bool) -> None:
    async with (
        served(SLOW | {"limits": {"first_byte_s": 0}}) as api,
        asking(api, stream=stream) as (task, id),
    ):
        await until(
            lambda: (api.service.sessions.running[id].record.steps or [None])[-1].first_token_s is not None
        )
        assert (await api.http.post(f"/v1/workflows/{id}/cancel", json={})).status_code == 200
        answer = await task
        await api.quiet()
        record = await api.record(id)
        if stream:
            last = json.loads(answer.text.split("\n\n")[-3].removeprefix("data: "))
            assert last["error"]["code"] == "cancelled"
        else:
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "cancelled")
        assert (record["status"], record["steps"][1]["output"]) == ("cancelled", "one two")
        again = await api.http.post(f"/v1/workflows/{id}/cancel", json={})
        assert (again.status_code, again.json()["status"]) == (200, "cancelled")
        assert (await api.http.post("/v1/workflows/wf_9/cancel", json={})).status_code == 404


async def test_followers_of_a_run_stay_connected_without_the_store(
    store_address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicas(store_address, PACED) as (one, other):
        task = asyncio.create_task(ask_again(one.api))
        await until(lambda: one.api.worker("b").open_calls == 1, "the answer has begun")
        (id,) = one.api.service.sessions.running
        while (await other.api.http.get(f"/v1/workflows/{id}")).status_code == 404:
            await asyncio.sleep(0.01)
        following = asyncio.create_task(other.api.http.get(f"/v1/workflows/{id}/events"))
        joining = asyncio.create_task(ask_again(other.api))
        look_up, failed = other.records.events, 0

        async def fail_first(run_id: str, after: int) -> EventPage:
            nonlocal failed
            if after and failed < 4:
                failed += 1
                raise StoreUnavailable("The store is away.")
            return await look_up(run_id, after)

        monkeypatch.setattr(other.records, "events", fail_first)
        words = PACED["workers"][2]["replies"][0]
        assert answer_in(events_of((await following).text)) == words
        assert answer_text(parsed((await joining).text)) == answer_text(parsed((await task).text)) == words
        assert failed == 4


async def ask_again(api: Served) -> httpx2.Response:
    headers = {"idempotency-key": "mine-1"}
    return await api.http.post("/v1/chat/completions", json=ASK | {"stream": True}, headers=headers)
