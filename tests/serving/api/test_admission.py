"""Limits by key, team and router for everything but runs: open streams, unread bytes and concurrent reads."""

import asyncio
import gzip
import json
import socket
import threading
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

from conductor.errors import Overloaded
from conductor.run.record import Account
from serving.api.dialects.table import DIALECTS
from serving.api.feed import WINDOW_BYTES, Feed
from serving.api.route_access import Who, access_table
from serving.batches.model import Batch, StoredFile
from serving.fairness import Room, in_slices
from serving.redaction.personal import PersonalDataRedactor
from serving.redaction.slices import turn
from tests.serving.api.keyed import Keyed, keyed
from tests.serving.api.served import ASK, Json, plan, scripted, served, step, team
from tests.serving.api.test_client_disconnects import get, slow_request
from tests.serving.spans import SPANS
from tests.states import until

STALLS = scripted("a", {"text": "x y", "stall_after_tokens": 1})
MB = 1_000_000


def stalling(**limits: int) -> Json:
    return team(workers=[STALLS, scripted("b")], workflows={}, limits=limits)


def refusal(answer: httpx2.Response) -> tuple[int, str, str]:
    """Return the status, the code, and the setting in the message and `param`."""
    error = answer.json()["error"]
    assert error["param"] in error["message"], error
    assert int(answer.headers["retry-after"]) >= 1
    return answer.status_code, error["code"], error["param"]


@asynccontextmanager
async def running_run(it: Keyed, who: str) -> AsyncGenerator[str]:
    ask = ASK | {"model": "a", "stream": True}
    path = "/v1/chat/completions"
    async with it.api.http.stream("POST", path, json=ask, headers=it.headers(who)) as answer:
        yield answer.headers["x-podium-workflow-id"]


async def watch(stack: AsyncExitStack, it: Keyed, who: str, id: str) -> httpx2.Response:
    path, headers = f"/v1/workflows/{id}/events", it.headers(who)
    answer = await stack.enter_async_context(it.api.http.stream("GET", path, headers=headers))
    if answer.status_code != 200:
        await answer.aread()
    return answer


async def test_one_key_may_have_a_quarter_of_the_open_reads(
    tmp_path: Path,
) -> None:
    async with (
        keyed(tmp_path, stalling(max_reads=16)) as it,
        running_run(it, "mine") as id,
        running_run(it, "other team") as theirs,
        AsyncExitStack() as stack,
    ):
        for _ in range(4):
            assert (await watch(stack, it, "only read", id)).status_code == 200
        refused = (429, "overloaded", "limits.max_reads")
        assert refusal(await watch(stack, it, "only read", id)) == refused
        assert refusal(await it.ask("only read", "GET", "/v1/workflows")) == refused
        assert refusal(await it.ask("only read", "GET", "/v1/models")) == refused
        assert (await watch(stack, it, "other team", theirs)).status_code == 200
        assert (await it.ask("mine", "GET", "/v1/workflows")).status_code == 200
        assert (await it.ask("only run", "POST", f"/v1/workflows/{id}/cancel", {})).status_code == 200
        for path in ("/healthz", "/readyz"):
            assert (await it.ask(None, "GET", path)).status_code == 200
    # Closing the streams releases everything.


async def test_one_team_may_have_half_of_the_open_reads(tmp_path: Path) -> None:
    async with keyed(tmp_path, stalling(max_reads=16)) as it, running_run(it, "mine") as id:
        async with AsyncExitStack() as stack:
            for who in ("mine", "only read"):
                for _ in range(4):
                    assert (await watch(stack, it, who, id)).status_code == 200
            third, _ = await it.directory.create_key("third", "search")
            it.secrets["third"] = third.reveal()
            refused = await it.ask("third", "GET", "/v1/workflows")
            assert refusal(refused) == (429, "overloaded", "limits.max_reads")
            assert "team" in refused.json()["error"]["message"]
        await until(lambda: not it.api.feeds.room.in_use, "nothing is held")
        assert (await it.ask("third", "GET", "/v1/workflows")).status_code == 200


async def test_a_key_at_its_read_limit_is_rejected_before_routing(tmp_path: Path) -> None:
    async with (
        keyed(tmp_path, stalling(max_reads=16)) as it,
        running_run(it, "mine") as id,
        AsyncExitStack() as stack,
    ):
        assert (await it.ask("only read", "GET", "/v1/nothing")).status_code == 404
        for _ in range(4):
            assert (await watch(stack, it, "only read", id)).status_code == 200
        refused = (429, "overloaded", "limits.max_reads")
        assert refusal(await it.ask("only read", "GET", "/v1/nothing")) == refused
        assert (await it.ask("only read", "GET", "/readyz")).status_code == 200
        assert (await it.ask("mine", "GET", "/v1/nothing")).status_code == 404
    rules = access_table(DIALECTS).items()
    of_keys = [access for place, access in rules if place.startswith("GET ") and access.who is not Who.PUBLIC]
    assert {access.cost.counted for access in of_keys} == {"reads"}


async def test_a_router_rejects_requests_below_serves_limit_and_still_answers_probes() -> None:
    settings = stalling() | {"router": {"max_ongoing_requests": 16, "target_ongoing_requests": 8}}
    async with served(settings) as api, AsyncExitStack() as stack:
        ask = ASK | {"model": "a", "stream": True}
        path = "/v1/chat/completions"
        first = await stack.enter_async_context(api.http.stream("POST", path, json=ask))
        events = f"/v1/workflows/{first.headers['x-podium-workflow-id']}/events"
        for _ in range(14):
            answer = await stack.enter_async_context(api.http.stream("GET", events))
            assert answer.status_code == 200
        requests = (("GET", events), ("GET", "/v1/models"), ("POST", path), ("GET", "/v1/nothing"))
        for method, place in requests:
            refused = await api.http.request(method, place, json=ask if method == "POST" else None)
            assert refusal(refused) == (429, "overloaded", "router.max_ongoing_requests")
        for path in ("/healthz", "/readyz"):
            assert (await api.http.get(path)).status_code == 200


async def test_unfinished_requests_count_as_open_and_are_closed_for_others() -> None:
    settings = stalling() | {"router": {"max_ongoing_requests": 16, "target_ongoing_requests": 8}}
    async with served(settings) as api:
        address = api.url.removeprefix("http://").split(":")
        head = b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 200000\r\ncontent-type: multipart/form-data; boundary=x\r\n\r\n"
        slow = [await asyncio.open_connection(*address) for _ in range(15)]
        for _, writer in slow:
            writer.write(head + 100_000 * b"x")
            await writer.drain()
        oldest = asyncio.create_task(slow[0][0].readuntil(b"\r\n\r\n"))
        async with asyncio.timeout(5):
            while not oldest.done():
                assert (await api.http.get("/v1/models")).status_code == 200
        assert oldest.result().startswith(b"HTTP/1.1 429")
        for path in ("/healthz", "/readyz"):
            assert (await api.http.get(path)).status_code == 200
        for _, writer in slow:
            writer.close()


async def test_constant_documents_are_built_once_and_cached_by_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serving.api import admin, openapi

    builds = list[str]()

    def counting(get_openapi: Any) -> Any:
        def get(**named: Any) -> Any:
            builds.append(named["title"])
            assert threading.current_thread() is not threading.main_thread(), "it takes seconds of CPU"
            return get_openapi(**named)

        return get

    for module in (admin, openapi):
        monkeypatch.setattr(module, "get_openapi", counting(cast(Any, module).get_openapi))
    async with keyed(tmp_path) as it:
        for path in ("/v1/openapi.json", "/v1/admin/openapi.json"):
            answers = await asyncio.gather(*(it.ask("admin", "GET", path) for _ in range(5)))
            assert {each.content for each in answers} == {answers[0].content}
            tag = answers[0].headers["etag"]
            again = await it.ask("admin", "GET", path, headers={"if-none-match": tag})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert builds == ["Podium", "Podium administration"]


@pytest.mark.parametrize("n_keys", [1, 6])
async def test_reads_of_different_teams_take_turns(tmp_path: Path, n_keys: int) -> None:
    async with keyed(tmp_path) as it:
        for n in range(n_keys):
            secret, info = await it.directory.create_key(f"key {n}", "search")
            it.secrets[f"key {n}"], it.ids[f"key {n}"] = secret.reveal(), info.id
        store, gate, order = cast(Any, it.api.service.store), asyncio.Semaphore(0), list[str]()
        newest = store.newest

        async def slowly(limit: int, caller: Any, *args: Any) -> Any:
            order.append(caller.account.key_id)
            async with gate:
                return await newest(limit, caller, *args)

        store.newest = slowly
        assert (await it.ask("other team", "GET", "/v1/models")).status_code == 200  # caches its key
        mine = [asyncio.create_task(it.ask(f"key {n % n_keys}", "GET", "/v1/workflows")) for n in range(12)]
        await until(lambda: len(order) >= 3, "some are worked on")
        assert len(order) <= 4
        other = asyncio.create_task(it.ask("other team", "GET", "/v1/workflows"))
        await until(lambda: len(it.api.connections) >= 13, "the other key's request is there")
        await asyncio.sleep(0.1)
        if it.ids["other team"] not in order:  # the place that is reserved for other keys was lent
            gate.release()
            await until(lambda: it.ids["other team"] in order, "it is next")
        assert len(order) <= 6, "the others of the first team wait"
        for _ in range(20):
            gate.release()
        assert {(await each).status_code for each in [*mine, other]} == {200}


READ_LATER = (
    "/v1/workflows/{run}",
    "/v1/responses/{response}",
    "/v1/responses/{response}/input_items",
    "/v1/conversations/{conversation}/items",
    "/v1/conversations/{conversation}/items/{item}",
)


async def test_answers_with_texts_are_encoded_in_turns() -> None:
    async with served(team(workers=[scripted("a", "Yes.")], workflows={})) as api:
        items = [{"type": "message", "role": "user", "content": "Hello."}]
        conversation = (await api.http.post("/v1/conversations", json={"items": items})).json()["id"]
        item = (await api.http.get(f"/v1/conversations/{conversation}/items")).json()["data"][0]["id"]
        answer = await api.http.post("/v1/responses", json={"model": "a", "input": "Hello."})
        ids = {
            "run": answer.headers["x-podium-workflow-id"],
            "response": answer.json()["id"],
            "conversation": conversation,
            "item": item,
        }
        for path in READ_LATER:
            async with turn(Account("someone else")):
                reading = asyncio.create_task(api.http.get(path.format(**ids)))
                done, _ = await asyncio.wait([reading], timeout=0.2)
                assert not done, path
            assert (await reading).status_code == 200, path


COUNT: Json = {"messages": [{"role": "user", "content": "word " * 100_000}]}
LARGE_BODIES: dict[str, Json] = {
    "/v1/chat/completions": COUNT | {"model": "a"},
    "/v1/messages/count_tokens": COUNT | {"model": "a"},
    "/v1/responses/input_tokens": {"model": "a", "input": "word " * 100_000},
    "/v1/responses/compact": {"model": "a", "input": "word " * 100_000},
    "/v1/conversations": {"items": [], "metadata": {}, "x": "word " * 100_000},
    "/v1/batches": {"x": "word " * 100_000},
    "/v1/admin/teams": {"x": "word " * 100_000},
}


@pytest.mark.parametrize("path", LARGE_BODIES)
async def test_large_bodies_are_parsed_in_turns(path: str, tmp_path: Path) -> None:
    async with keyed(tmp_path) as it:
        who = "admin" if "admin" in path else "mine"
        await it.ask(who, "GET", "/v1/models")  # caches its key
        headers = it.headers(who) | {"content-type": "application/json", "content-encoding": "gzip"}
        content = gzip.compress(json.dumps(LARGE_BODIES[path]).encode())  # short until it is decoded
        async with turn(Account("someone else")):
            asking = asyncio.create_task(it.api.http.post(path, content=content, headers=headers))
            done, _ = await asyncio.wait([asking], timeout=0.3)
            assert not done
        assert (await asking).status_code in (200, 400, 422)


async def test_a_long_list_does_not_block_the_event_loop() -> None:
    def work() -> int:
        return sum(range(40_000))

    turns, done = 0, False

    async def count() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    squares = [work() * 0 + item async for item in in_slices(range(200))]
    done = True
    await counting
    assert squares == list(range(200))
    assert turns > 10


async def test_a_list_of_runs_built_in_slices_is_complete_and_ordered() -> None:
    async with served(team(workers=[scripted("a", delay_s=0.01)], workflows={})) as api:
        ids = [(await api.ok({"model": "a"}))["podium"]["workflow_id"] for _ in range(30)]
        listed = (await api.http.get("/v1/workflows?limit=20")).json()
        assert list(listed) == ["object", "data", "has_more", "next_after"]
        assert [each["id"] for each in listed["data"]] == ids[::-1][:20]
        rest = (await api.http.get(f"/v1/workflows?after={listed['next_after']}")).json()
        assert [each["id"] for each in rest["data"]] == ids[::-1][20:]
        assert (await api.http.get("/v1/batches")).json()["data"] == []


async def keep_file(it: Keyed, name: str, n_bytes: int) -> str:
    account = Account(it.ids["mine"], it.ids["search"])
    id = f"file-{name}"
    file = StoredFile(id, account, "user_data", "a.bin", n_bytes, 1, 10**18)
    await it.api.batches.store.add_file(file, n_bytes * b"x")
    return id


@pytest.mark.real_time
async def test_unread_downloads_share_a_limit_in_bytes_and_release_it(tmp_path: Path) -> None:
    async with keyed(tmp_path, stalling(max_unread_bytes=8 * MB, unread_s=60)) as it:
        path = f"/v1/files/{await keep_file(it, '1', 20 * MB)}/content"
        room = it.api.feeds.room
        async with AsyncExitStack() as stack:

            async def download(who: str) -> httpx2.Response:
                streamed = it.api.http.stream("GET", path, headers=it.headers(who))
                answer = await stack.enter_async_context(streamed)
                if answer.status_code != 200:
                    await answer.aread()
                return answer

            assert (await download("mine")).status_code == 200
            assert room.in_use <= 8 * MB
            assert refusal(await download("mine")) == (429, "overloaded", "limits.max_unread_bytes")
            assert (await download("only read")).status_code == 200, "another key of the team"
            assert (await download("admin")).status_code == 200
        await until(lambda: not room.in_use, "nothing is held")
        whole = await it.ask("mine", "GET", path)
        assert len(whole.content) == 20 * MB


def talkative(n_words: int) -> Json:
    """Return settings whose first step sends a long text in pieces, which are kept while a client watches."""
    words = " ".join(f"{n:0999d}" for n in range(n_words))
    workers = [scripted("a", words, tokens_per_s=n_words), scripted("b", "Done.")]
    plans = plan(step("a", "Say much."), step("b", "Conclude.", [0]))
    return team(plans, workers=workers, workflows={}, limits={"unread_s": 60})


async def read_events(reader: asyncio.StreamReader) -> str:
    """Return the events of a chunked response whose head was partly read."""
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    stream = b""
    while n_bytes := int(await reader.readuntil(b"\r\n"), 16):
        stream += (await reader.readexactly(n_bytes + 2))[:-2]
    return stream.decode()


@pytest.mark.real_time
async def test_a_watcher_that_stops_reading_buffers_one_window_and_loses_nothing() -> None:
    async with served(talkative(1_000)) as api:
        asking = asyncio.create_task(api.ok())
        await until(lambda: api.service.sessions.running, "it has begun")
        path = f"/v1/workflows/{next(iter(api.service.sessions.running))}/events"
        async with slow_request(api, get(path)) as (reader, writer):
            quick = await api.http.get(path)  # reads to the end
            queued_bytes = [
                cast(Feed, feed)._n_bytes for feed in api.service.sessions.watchers(path.split("/")[3])
            ]
            assert max(queued_bytes) < 2 * WINDOW_BYTES, "of some MB"
            assert len(quick.content) > 3 * WINDOW_BYTES
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MB)
            assert await read_events(reader) == quick.text, "the slow one misses nothing"
        await asking
        await until(lambda: not api.service.sessions.watchers(path.split("/")[3]), "nobody watches")
        assert api.feeds.room.in_use == 0
        assert quick.text.endswith('{"type":"end","status":"finished"}\n\n')
        assert (await api.http.get(path)).text == quick.text, "from the store it is the same"


@pytest.mark.real_time
async def test_watchers_of_large_events_share_the_limit_of_unread_bytes(tmp_path: Path) -> None:
    workers = [scripted("a", "x" * 300_000)]
    settings = team(workers=workers, workflows={}, limits={"max_unread_bytes": 12 * MB})
    async with keyed(tmp_path, settings) as it:
        ids = list[str]()
        for _ in range(8):
            answer = await it.ask("mine", "POST", "/v1/chat/completions", ASK | {"model": "a"})
            ids.append(answer.headers["x-podium-workflow-id"])
        room, key = it.api.feeds.room, f"authorization: {it.headers('mine')['authorization']}\r\n\r\n"
        async with AsyncExitStack() as stack:
            for id in ids:
                raw_request = get(f"/v1/workflows/{id}/events")[:-2] + key.encode()
                await stack.enter_async_context(slow_request(it.api, raw_request))
            await until(lambda: room.in_use > 2 * MB, "much waits")
            assert room.in_use <= 3 * MB, "the quarter of the key"
        await until(lambda: not room.in_use, "nothing is held")
        path = f"/v1/workflows/{ids[0]}/events"
        assert (await it.ask("mine", "GET", path)).text.count("event: end") == 1


async def test_uploads_in_progress_count_towards_the_request_memory() -> None:
    async with served(stalling(max_running_bytes=400_000)) as api:
        form: Any = {"data": {"purpose": "user_data"}, "files": {"file": ("a.txt", b"x" * 100_000)}}
        with api.service.sessions.admission.memory.occupy(Account(), 150_000):
            refused = await api.http.post("/v1/files", **form)
            assert refusal(refused) == (429, "overloaded", "limits.max_running_bytes")
        assert (await api.http.post("/v1/files", **form)).status_code == 200


BODIES: dict[str, Json] = {
    "/v1/messages/count_tokens": {"model": "a", "messages": [{"role": "user", "content": 600_000 * "x"}]},
    "/v1/responses/input_tokens": {"model": "a", "input": 600_000 * "x"},
    "/v1/conversations": {"items": [{"type": "message", "role": "user", "content": 600_000 * "x"}]},
}


@pytest.mark.parametrize("path", BODIES)
async def test_bodies_of_other_requests_count_towards_the_request_memory(path: str) -> None:
    async with served(stalling(max_running_bytes=MB)) as api:
        memory = api.service.sessions.admission.memory
        with memory.hold(Account(), MB // 2, "interactive"):
            refused = await api.http.post(path, json=BODIES[path])
            assert refused.status_code == 429, refused.text
            assert "limits.max_running_bytes" in refused.json()["error"]["message"]
        assert (await api.http.post(path, json=BODIES[path])).status_code == 200
        memory.check(Account(), 2 * MB, "interactive")  # fits, so nothing is held any more


@pytest.mark.parametrize("encoding", ["gzip", ""])
async def test_bodies_of_runs_count_towards_the_request_memory_until_the_run_does(encoding: str) -> None:
    ask = ASK | {"model": "b", "messages": [{"role": "user", "content": 600_000 * "x"}]}
    content, headers = json.dumps(ask).encode(), {"content-type": "application/json"}
    if encoding:
        content, headers = gzip.compress(content), headers | {"content-encoding": encoding}
    async with served(stalling(max_running_bytes=MB)) as api:
        async with turn(Account("someone else")):  # bodies wait to be parsed
            first = asyncio.create_task(
                api.http.post("/v1/chat/completions", content=content, headers=headers)
            )
            await asyncio.wait([first], timeout=0.3)
            second = await asyncio.wait_for(
                api.http.post("/v1/chat/completions", content=content, headers=headers), 10
            )
            assert refusal(second) == (429, "overloaded", "limits.max_running_bytes")
        assert (await first).status_code == 200, "its texts count once"
        api.service.sessions.admission.memory.check(Account(), 2 * MB, "interactive")  # nothing is held


async def test_a_key_without_read_scope_cannot_read_a_teammates_batch_by_cancelling_it(
    tmp_path: Path,
) -> None:
    async with keyed(tmp_path) as it:
        for who, id in (("mine", "batch_1"), ("only run", "batch_2")):
            account = Account(it.ids[who], it.ids["search"])
            batch = Batch(
                id, account, "", "completed", "file-1", "/v1/chat/completions", {"a": "b"}, 1, 1, 10**18
            )
            await it.api.batches.store.add(batch)
        teammates = await it.ask("only run", "POST", "/v1/batches/batch_1/cancel", {})
        assert teammates.json() == {"id": "batch_1", "object": "batch", "status": "completed"}
        own = await it.ask("only run", "POST", "/v1/batches/batch_2/cancel", {})
        assert own.json()["metadata"] == {"a": "b"}
        reader = await it.ask("mine", "POST", "/v1/batches/batch_2/cancel", {})
        assert reader.json()["metadata"] == {"a": "b"}


async def test_tokens_are_counted_only_for_permitted_models(
    tmp_path: Path,
) -> None:
    async with keyed(tmp_path) as it:
        policy = await it.ask("admin", "POST", f"/v1/admin/keys/{it.ids['mine']}/policy", {"workers": ["a"]})
        assert policy.status_code == 200, policy.text
        messages = [{"role": "user", "content": "Hi."}]
        paths: dict[str, Json] = {
            "/v1/responses/input_tokens": {"input": "Hi."},
            "/v1/responses/compact": {"input": "Hi."},
            "/v1/messages/count_tokens": {"messages": messages},
            "/v1/plans": {"messages": messages},
            "/v1/embeddings": {"input": "Hi."},
        }
        for path, body in paths.items():
            for name in ("no-such-model", "b"):
                answer = await it.ask("mine", "POST", path, body | {"model": name})
                assert answer.status_code == 404, (path, name, answer.text)
                assert "may not use it" in answer.json()["error"]["message"], (path, name)
        counted = await it.ask("mine", "POST", "/v1/responses/input_tokens", {"input": "Hi.", "model": "a"})
        assert counted.json()["input_tokens"] > 0
        assert (await it.ask("mine", "POST", "/v1/responses/input_tokens", {"input": "Hi."})).status_code == 200  # fmt: skip


A, B, ALONE, NO_KEY = Account("a1", "a"), Account("b1", "b"), Account("c1"), Account()


def test_the_last_part_of_a_limit_is_reserved_for_keys_below_their_share() -> None:
    room = Room("limits.max_reads", lambda: 100, "reads")
    for team_id in ("a", "b"):
        room.acquire(Account(f"{team_id}1", team_id), 25)
        with pytest.raises(
            Overloaded, match=r"This key has .* a quarter of the server.s limit \(limits\.max_reads\)"
        ):
            room.acquire(Account(f"{team_id}1", team_id))
        room.acquire(Account(f"{team_id}2", team_id), 20)
        with pytest.raises(Overloaded, match="This team has"):
            room.acquire(Account(f"{team_id}3", team_id), 6)
    with pytest.raises(Overloaded, match="share"):
        room.acquire(Account("b2", "b"))
    for _ in range(10):
        room.acquire(ALONE)
    with pytest.raises(Overloaded, match="This server has reached its limit"):
        room.acquire(Account("d1"))


def test_an_unused_limit_admits_any_size_and_has_no_shares_without_keys() -> None:
    room = Room("limits.max_unread_bytes", lambda: 10, "bytes")
    with room.holding(A, 1000), pytest.raises(Overloaded):
        room.acquire(B, 1)
    for _ in range(10):
        room.acquire(NO_KEY)
    with pytest.raises(Overloaded):
        room.acquire(NO_KEY)
    room.release(NO_KEY, 10)
    assert room.in_use == 0


LONG = "Write to ada@example.org. " * 2_000
FUNCTION: Json = {"name": "f", "description": LONG, "parameters": {"type": "object"}}
LONG_TEXTS: dict[str, tuple[str, Json]] = {
    "a question to a team": ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
    "a tool": ("/v1/chat/completions", ASK | {"tools": [{"type": "function", "function": FUNCTION}]}),
    "a task of a plan": ("/v1/chat/completions", ASK | {"podium": {"plan": [step("a", LONG)]}}),
    "instructions": ("/v1/responses", {"input": "Hello.", "instructions": LONG}),
    "a system prompt": ("/v1/messages", ASK | {"max_tokens": 99, "system": LONG}),
    "an item of a conversation": (
        "/v1/conversations",
        {"items": [{"type": "message", "role": "user", "content": LONG}]},
    ),
}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the long texts that are redacted in one go."""
    at_once = list[str]()
    look = PersonalDataRedactor.__call__

    def noting(self: PersonalDataRedactor, text: str) -> str:
        if len(text) > 20_000:
            at_once.append(f"{text[:50]} ... ({len(text)})")
        return look(self, text)

    monkeypatch.setattr(PersonalDataRedactor, "__call__", noting)
    return at_once


@pytest.mark.parametrize("what", LONG_TEXTS)
async def test_a_long_text_of_a_request_is_redacted_in_slices(
    what: str, tmp_path: Path, at_once: list[str]
) -> None:
    path, body = LONG_TEXTS[what]
    async with keyed(tmp_path) as it:
        policy = f"/v1/admin/keys/{it.ids['mine']}/policy"
        await it.ask("admin", "POST", policy, {"redact_personal_data": True})
        answer = await it.ask(
            "mine", "POST", path, {"model": "mini"} | body if "convers" not in path else body
        )
        assert answer.status_code == 200, answer.text
        await until(lambda: not it.api.service.running, "the run has ended")
    assert not at_once


LONG_ANSWER = LONG[:-1] + "!"
ONE_WORD = "ada@example.org," * 4_000
LONG_ANSWERS: dict[str, Json] = {
    "an answer": ASK | {"model": "much"},
    "a stream": ASK | {"model": "much", "stream": True},
    "an answer of one word": ASK | {"model": "one-word"},
    "an answer in JSON": ASK | {"model": "json", "response_format": {"type": "json_object"}},
    "a step's output, and the prompt that quotes it": ASK | {"model": "mini"},
    "a prompt that is not stored": ASK
    | {"model": "brief", "messages": [{"role": "user", "content": LONG}], "store": False},
}


@pytest.mark.parametrize("what", LONG_ANSWERS)
async def test_a_long_answer_and_prompts_in_spans_are_redacted_in_slices(
    what: str, tmp_path: Path, at_once: list[str]
) -> None:
    texts = {"much": LONG_ANSWER, "one-word": ONE_WORD, "json": json.dumps({"a": LONG}), "brief": "No."}
    plans = plan(step("much", "Say much."), step("much", "Conclude.", [0]))
    workers = [scripted(name, text) for name, text in texts.items()]
    settings = team(plans, workers=workers, workflows={}, telemetry={"content": True})
    SPANS.clear()
    async with keyed(tmp_path, settings) as it:
        policy = f"/v1/admin/keys/{it.ids['mine']}/policy"
        await it.ask("admin", "POST", policy, {"redact_personal_data": True})
        for _ in range(2):  # the second answer may be cached
            answer = await it.ask("mine", "POST", "/v1/chat/completions", LONG_ANSWERS[what])
            assert answer.status_code == 200, answer.text
            await until(lambda: not it.api.service.running, "the run has ended")
        path = f"/v1/workflows/{answer.headers['x-podium-workflow-id']}"
        record = await it.ask("mine", "GET", path)
    prompts = [span.attributes or {} for span in SPANS.named("chat ")]
    assert prompts
    assert all("gen_ai.input.messages" in each for each in prompts)
    assert "ada@example.org" not in record.text + str(prompts)
    assert not at_once


async def test_tools_and_the_answer_format_count_towards_the_request_memory() -> None:
    large = {"type": "object", "properties": {"a": {"description": "x" * 60_000}}, "x": ["y"] * 20_000}
    tool = {"type": "function", "function": {"name": "f", "parameters": large}}
    body = {"model": "a", "messages": ASK["messages"], "stream": True, "tools": [tool]}
    settings = stalling(max_running_bytes=400_000) | {"store": {"asked_again_s": 0}}
    async with (
        served(settings) as api,
        api.http.stream("POST", "/v1/chat/completions", json=body) as first,
    ):
        assert first.status_code == 200
        second = await api.http.post("/v1/chat/completions", json=body)
        assert refusal(second) == (429, "overloaded", "limits.max_running_bytes")
