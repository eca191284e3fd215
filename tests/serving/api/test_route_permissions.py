"""Access to every route by every kind of key, over a real socket."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import httpx2
import openai
import pytest
from starlette.routing import Route

from conductor.run.record import Account
from serving.accounts.keys import ApiKey
from serving.api.app import build_api
from serving.api.authentication import Authenticator, authenticate, read_credential
from serving.api.dialects.table import DIALECTS
from serving.api.route_access import access_table
from serving.api.route_admission import Admission
from serving.batches.model import Batch, StoredFile
from serving.pool import build_pool
from serving.sessions.service import Service
from serving.settings.settings import parse
from serving.store.conversations import new_conversation
from tests.serving.api.keyed import KEYS, Keyed, keyed
from tests.serving.api.served import ASK, Json, scripted, served, team

WHO = (None, "wrong", "other team", "only run", "only read", "mine", "admin")
CHAT = "/v1/chat/completions"
REQUEST: Json = {"model": "mini", "input": "Why is the sky blue?"}


FILE, WORK = f"file-{'0' * 32}", f"batch_{'0' * 32}"
CONVERSATION, ITEM = "conv_1", "msg_1"
BATCH = {"input_file_id": FILE, "endpoint": CHAT, "completion_window": "24h"}


class AccessCase(NamedTuple):
    """A request, and its expected status for each of `WHO`."""

    method: str
    path: str
    statuses: tuple[int, ...]
    body: Any = None
    headers: dict[str, str] | None = None


RUNS, READS, ADMINS = (401, 401, 200, 200, 403, 200, 200), (401, 401, 200, 403, 200, 200, 200), (401, 401, 403, 403, 403, 403, 200)  # fmt: skip
CREATES = (*ADMINS[:-1], 201)
EVERYBODY, ANY_KEY = (200,) * 7, (401, 401, 200, 200, 200, 200, 200)
OF_MY_TEAM, OF_MY_TEAM_TO_RUN = (401, 401, 404, 403, 200, 200, 200), (401, 401, 404, 200, 403, 200, 200)
OF_MY_TEAM_TO_READ_AND_RUN = (401, 401, 404, 404, 403, 200, 200)
"""A key without the read scope sees the responses that it created."""
TO_ADD = (*OF_MY_TEAM_TO_READ_AND_RUN[:-1], 403)
"""An administrator adds nothing to a team's own objects."""
TABLE = (
    AccessCase("GET", "/healthz", EVERYBODY),
    AccessCase("GET", "/readyz", EVERYBODY),
    AccessCase("GET", "/", (307,) * 7, headers={"accept": "text/html,*/*;q=0.8"}),
    AccessCase("GET", "/console/", EVERYBODY),
    AccessCase("GET", "/v1/models", ANY_KEY),
    AccessCase("GET", "/v1/models/{name:path}", ANY_KEY),
    AccessCase("POST", CHAT, RUNS, ASK),
    AccessCase("POST", CHAT, RUNS, ASK | {"stream": True}),
    AccessCase("POST", "/v1/completions", RUNS, {"model": "a", "prompt": "Once"}),
    AccessCase("POST", "/v1/embeddings", (*RUNS[:2], 400, 400, 403, 400, 400), {"model": "a", "input": "x"}),
    AccessCase("POST", "/v1/messages", RUNS, ASK | {"max_tokens": 50}),
    AccessCase("POST", "/v1/messages", RUNS, ASK | {"max_tokens": 50, "stream": True}),
    AccessCase("POST", "/v1/messages/count_tokens", RUNS, ASK),
    AccessCase("POST", "/v1/responses", RUNS, REQUEST),
    AccessCase("POST", "/v1/responses", RUNS, REQUEST | {"stream": True}),
    AccessCase("POST", "/v1/responses/input_tokens", RUNS, REQUEST),
    AccessCase("POST", "/v1/responses/compact", RUNS, REQUEST),
    AccessCase("GET", "/v1/responses/{response_id}", OF_MY_TEAM),
    AccessCase("GET", "/v1/responses/{response_id}/input_items", OF_MY_TEAM),
    AccessCase("POST", "/v1/responses/{response_id}/cancel", OF_MY_TEAM_TO_READ_AND_RUN, {}),
    AccessCase("DELETE", "/v1/responses/{response_id}", OF_MY_TEAM_TO_READ_AND_RUN),
    AccessCase("POST", "/v1/conversations", RUNS, {}),
    AccessCase("GET", "/v1/conversations/{conversation_id}", OF_MY_TEAM),
    AccessCase("POST", "/v1/conversations/{conversation_id}", TO_ADD, {"metadata": {}}),
    AccessCase("POST", "/v1/conversations/{conversation_id}/items", TO_ADD, {"items": []}),
    AccessCase("GET", "/v1/conversations/{conversation_id}/items", OF_MY_TEAM),
    AccessCase("GET", "/v1/conversations/{conversation_id}/items/{item_id}", OF_MY_TEAM),
    AccessCase("POST", "/v1/responses", TO_ADD, REQUEST | {"conversation": CONVERSATION}),
    AccessCase("DELETE", "/v1/conversations/{conversation_id}/items/{item_id}", OF_MY_TEAM_TO_READ_AND_RUN),
    AccessCase("DELETE", "/v1/conversations/{conversation_id}", OF_MY_TEAM_TO_READ_AND_RUN),
    AccessCase("POST", "/v1/plans", RUNS, ASK),
    AccessCase("GET", "/v1/workflows", READS),
    AccessCase("GET", "/v1/costs", READS),
    AccessCase("GET", "/v1/workflows/{id}", OF_MY_TEAM),
    AccessCase("GET", "/v1/workflows/{id}/events", OF_MY_TEAM),
    AccessCase("POST", "/v1/workflows/{id}/cancel", OF_MY_TEAM_TO_RUN, {}),
    AccessCase("POST", "/v1/workflows/{id}/feedback", (401, 401, 404, 200, 403, 200, 403), {"score": 1}),
    AccessCase("POST", "/v1/files", RUNS),
    AccessCase("GET", "/v1/files", READS),
    AccessCase("GET", "/v1/files/{file}", OF_MY_TEAM),
    AccessCase("GET", "/v1/files/{file}/content", OF_MY_TEAM),
    AccessCase("POST", "/v1/batches", (401, 401, 404, 404, 403, 200, 200), BATCH),
    AccessCase("GET", "/v1/batches", READS),
    AccessCase("GET", "/v1/batches/{batch}", OF_MY_TEAM),
    AccessCase("POST", "/v1/batches/{batch}/cancel", OF_MY_TEAM_TO_RUN, {}),
    AccessCase("DELETE", "/v1/files/{file}", OF_MY_TEAM_TO_RUN),
    AccessCase("GET", "/v1/replicas", ADMINS),
    AccessCase("GET", "/v1/workers", ADMINS),
    AccessCase("GET", "/v1/admin/ledger", ADMINS),
    AccessCase("GET", "/v1/admin/teams", ADMINS),
    AccessCase("POST", "/v1/admin/teams", CREATES, {"name": "new"}),
    AccessCase("POST", "/v1/admin/teams/{team}", ADMINS, {"enabled": True}),
    AccessCase("GET", "/v1/admin/teams/{team}/budget", ADMINS),
    AccessCase("POST", "/v1/admin/teams/{team}/budget", ADMINS, {"day_usd": 9}),
    AccessCase("GET", "/v1/admin/teams/{team}/policy", ADMINS),
    AccessCase("POST", "/v1/admin/teams/{team}/policy", ADMINS, {"max_steps": 9}),
    AccessCase("GET", "/v1/admin/keys", ADMINS),
    AccessCase("POST", "/v1/admin/keys", CREATES, {"name": "new"}),
    AccessCase("GET", "/v1/admin/keys/{key}", ADMINS),
    AccessCase("POST", "/v1/admin/keys/{key}", ADMINS, {"expires_at": "2100-01-01T00:00:00Z"}),
    AccessCase("POST", "/v1/admin/keys/{key}/rotate", ADMINS, {}),
    AccessCase("GET", "/v1/admin/keys/{key}/budget", ADMINS),
    AccessCase("POST", "/v1/admin/keys/{key}/budget", ADMINS, {}),
    AccessCase("GET", "/v1/admin/keys/{key}/policy", ADMINS),
    AccessCase("POST", "/v1/admin/keys/{key}/policy", ADMINS, {}),
    AccessCase("DELETE", "/v1/admin/keys/{key}", ADMINS),
    AccessCase("POST", "/v1/admin/reload", (*ADMINS[:-1], 400), {}),  # it was not started from a file
    AccessCase("GET", "/v1/admin/openapi.json", ADMINS),
    AccessCase("GET", "/v1/budget", ANY_KEY),
    AccessCase("GET", "/v1/openapi.json", ANY_KEY),
)
"""Every route, with each of its methods at least once."""
NOT_THERE, NOT_SO = (401, 401, 404, 404, 404, 404, 404), (401, 401, 405, 405, 405, 405, 405)
ELSEWHERE, FOREIGN = (401, 401, 307, 307, 307, 307, 307), (403,) * 7
NOBODY = (405,) * 7
BESIDES = (
    *(AccessCase("GET", path, NOT_THERE) for path in ("/v1/nothing", "/openapi.json", "/docs", "/metrics", "/V1/models", "//v1/workflows")),
    AccessCase("GET", "/", NOT_THERE),
    AccessCase("GET", "/", NOT_THERE, headers={"accept": "application/json"}),
    AccessCase("POST", "/", NOT_THERE, {}, {"accept": "text/html"}),
    AccessCase("GET", "/v1/admin", NOT_THERE),
    AccessCase("GET", "/healthz/%2e%2e/v1/workflows", NOT_THERE),
    AccessCase("GET", "/v1/models/%2e%2e/admin/keys", NOT_THERE),
    AccessCase("GET", "/v1/workflows/", ELSEWHERE),
    AccessCase("HEAD", "/healthz", (200,) * 7),
    AccessCase("HEAD", "/v1/workflows", READS),
    AccessCase("HEAD", CHAT, NOT_SO),
    AccessCase("POST", "/healthz", NOBODY, {}),
    AccessCase("POST", "/console/", NOBODY, {}),
    AccessCase("GET", "/console/absent.js", (404,) * 7),
    AccessCase("GET", "/console/", FOREIGN, headers={"host": "evil.example"}),
    AccessCase("GET", CHAT, NOT_SO),
    AccessCase("OPTIONS", CHAT, NOT_SO),
    AccessCase("DELETE", "/v1/workflows", NOT_SO),
    AccessCase("PUT", "/v1/admin/keys", NOT_SO, {}),
    AccessCase("GET", "/v1/workflows", READS, headers={"x-http-method-override": "DELETE", "x-original-url": "/v1/admin/keys"}),
    AccessCase("GET", "/v1/admin/keys", ADMINS, headers={"x-forwarded-user": "admin", "x-podium-caller": "admin"}),
    AccessCase("POST", CHAT, FOREIGN, ASK, {"origin": "https://evil.example"}),
    AccessCase("POST", CHAT, FOREIGN, ASK, {"host": "evil.example"}),
)  # fmt: skip
"""Unknown routes, cross-origin requests, and attempts to exceed a key's rights."""


@pytest.fixture
async def it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Keyed]:
    (tmp_path / "console").mkdir()
    (tmp_path / "console" / "index.html").write_text("<!doctype html>")
    monkeypatch.setattr("serving.api.console.FOLDER", tmp_path / "console")  # as if the console were built
    async with keyed(tmp_path) as running:
        yield running


async def run_of(it: Keyed, who: str) -> str:
    answer = await it.ask(who, "POST", CHAT, ASK)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-podium-workflow-id"]


async def add_file(it: Keyed, id: str) -> str:
    account, later_us = Account(it.ids["mine"], it.ids["search"]), 10**18
    await it.api.batches.store.add_file(StoredFile(id, account, "batch", "in.jsonl", 3, 1, later_us), b"{}\n")
    return id


async def add_batch(it: Keyed) -> None:
    account, later_us = Account(it.ids["mine"], it.ids["search"]), 10**18
    await it.api.batches.store.add(Batch(WORK, account, "", "completed", FILE, CHAT, {}, 1, 1, later_us))


async def add_conversation(it: Keyed, id: str) -> str:
    store, account = it.api.service.conversations, Account(it.ids["mine"], it.ids["search"])
    await store.create(new_conversation(id, account, {}))
    await store.append(id, [{"id": ITEM, "type": "message", "role": "user", "content": "Hi."}])
    return id


async def add_response(it: Keyed) -> str:
    return (await it.ask("mine", "POST", "/v1/responses", REQUEST)).json()["id"]


async def add_new(it: Keyed, names: dict[str, str], n: int) -> None:
    """Create new objects of `mine`, in case a request deleted the old ones."""
    names["file"] = await add_file(it, f"file-{n:032x}")
    names["conversation_id"] = await add_conversation(it, f"conv_{n}")
    names["response_id"] = await add_response(it)


async def send(it: Keyed, who: str | None, route: AccessCase, path: str) -> httpx2.Response:
    if (route.method, path) != ("POST", "/v1/files"):
        return await it.ask(who, route.method, path, route.body, route.headers)
    form: Any = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", b"{}")}}
    return await it.api.http.post(path, headers=it.headers(who), **form)


async def test_every_route_returns_the_expected_status_for_every_kind_of_key(it: Keyed) -> None:
    id = await run_of(it, "mine")
    spare = (await it.directory.create_key("spare"))[1].id
    await add_batch(it)
    names = {
        "name:path": "mini",
        "id": id,
        "response_id": await add_response(it),
        "team": it.ids["search"],
        "key": spare,
        "file": await add_file(it, FILE),
        "batch": WORK,
        "conversation_id": await add_conversation(it, CONVERSATION),
        "item_id": ITEM,
    }
    statuses: dict[tuple[str, str], tuple[int, ...]] = {}
    for route in (*TABLE, *BESIDES):
        answers: list[httpx2.Response] = []
        for n, who in enumerate(WHO, start=1):
            path = re.sub(r"\{([^}]+)\}", lambda place: names[place[1]], route.path)
            answers.append(await send(it, who, route, path))
            if route.method == "DELETE" and answers[-1].status_code == 200:
                await add_new(it, names, len(statuses) * len(WHO) + n)
        statuses[route.method, route.path] = tuple(answer.status_code for answer in answers)
        assert statuses[route.method, route.path] == route.statuses, route
        for answer in answers:
            assert answer.status_code < 400 or route.method == "HEAD" or "error" in answer.json()
    assert len(TABLE) + len(BESIDES) >= 40


def api_routes() -> set[tuple[str, str]]:
    api: Any = build_api(Service(build_pool(parse(team()), {}, engines={})))
    return {
        (method, route.path)
        for route in api.routes
        for method in (getattr(route, "methods", None) or {"GET"}) - {"HEAD"}
    }


def test_the_access_table_has_exactly_the_routes_of_the_api() -> None:
    assert {f"{method} {path}" for method, path in api_routes()} == access_table(DIALECTS).keys()


def test_a_route_without_an_access_rule_prevents_the_start() -> None:
    service = Service(build_pool(parse(team()), {}, engines={}))
    table = access_table(DIALECTS)
    admission = Admission(service, table)
    route = Route("/v1/new", lambda _: None, methods=["GET", "DELETE"])
    with pytest.raises(LookupError, match="/v1/new has no row"):
        admission.guard([route])


async def test_head_requires_the_same_key_as_get_on_every_route(it: Keyed) -> None:
    for method, path in api_routes():
        if method == "GET" and path != "/console":
            place = re.sub(r"\{[^}]+\}", "x", path)
            for who in (None, "only run", "only read"):
                got, head = [(await it.ask(who, each, place)).status_code for each in ("GET", "HEAD")]
                assert got == head, (who, path)


def test_the_table_has_every_route() -> None:
    served = {(method, "/console/" if path == "/console" else path) for method, path in api_routes()}
    ends = {"team": ("", "/budget", "/policy"), "key": ("", "/budget", "/rotate", "/policy")}
    same = {
        f"/v1/admin/{of}s/{{id}}{end}": f"/v1/admin/{of}s/{{{of}}}{end}" for of in ends for end in ends[of]
    }
    same |= {f"/v1/files/{{id}}{end}": f"/v1/files/{{file}}{end}" for end in ("", "/content")}
    same |= {f"/v1/batches/{{id}}{end}": f"/v1/batches/{{batch}}{end}" for end in ("", "/cancel")}
    routes = {(each.method, each.path) for each in TABLE}
    assert routes == {(method, same.get(path, path)) for method, path in served}, (
        "a route, or a row, is missing"
    )


async def test_a_request_without_a_key_runs_nothing_and_gets_the_remedy(it: Keyed) -> None:
    for who in (None, "wrong"):
        answer = await it.ask(who, "POST", CHAT, ASK)
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("invalid_api_key", "Authorization")
        assert "Authorization: Bearer" in error["message"]
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["x-should-retry"] == "false"
    assert not it.api.worker("conductor").calls


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"authorization": "Bearer none"}, "A Podium key is"),
        ({"authorization": "Bearer " + ApiKey.of(bytes(32)).reveal()[:-1] + "C"}, "checksum"),
        ({"authorization": "Basic dXNlcjpwYXNz"}, "must use the scheme `Bearer`"),
        ({"authorization": ""}, "must use the scheme `Bearer`"),
        ({"x-api-key": ""}, "A Podium key is"),
        ({"x-api-key": b"pk_\xff\xfe"}, "A Podium key is"),
    ],
)
async def test_an_invalid_key_gets_the_reason_but_is_not_shown(it: Keyed, headers: Any, message: str) -> None:
    answer = await it.api.http.get("/v1/models", headers=headers)
    assert answer.status_code == 401
    assert message in answer.json()["error"]["message"]
    assert not [value for value in headers.values() if value and str(value) in answer.text]


async def test_both_headers_are_read_and_two_different_keys_are_rejected(it: Keyed) -> None:
    mine, other = it.secrets["mine"], it.secrets["other team"]
    responses = [
        ({"x-api-key": mine}, 200),
        ({"authorization": f"bearer  {mine}"}, 200),
        ({"authorization": f"Bearer {mine}", "x-api-key": mine}, 200),
        ({"authorization": f"Bearer {mine}", "x-api-key": other}, 401),
        ({"authorization": f"Bearer {mine}", "x-api-key": ""}, 401),
        ({"authorization": "Bearer none", "x-api-key": mine}, 401),
    ]
    for headers, status in responses:
        assert (await it.api.http.get("/v1/models", headers=headers)).status_code == status, headers
    twice = [("x-api-key", mine), ("x-api-key", other)]
    assert (await it.api.http.get("/v1/models", headers=twice)).status_code == 401
    assert (await it.api.http.get(f"/v1/models?api_key={mine}&key={mine}")).status_code == 401
    assert read_credential([(b"x-api-key", b" k "), (b"authorization", b"BEARER k")]) == "k"


async def test_the_key_is_removed_from_the_headers_after_authentication(it: Keyed) -> None:
    mine = it.secrets["mine"].encode()
    headers = [(b"host", b"x"), (b"authorization", b"Bearer " + mine), (b"x-api-key", mine)]
    for path in ("/v1/models", "/healthz", "/readyz"):
        scope = {"type": "http", "path": path, "headers": headers, "server": ("127.0.0.1", 1)}
        await authenticate(Authenticator(it.directory), scope)
        assert scope["headers"] == [(b"host", b"x")]


async def test_keys_sent_by_openais_and_anthropics_clients_are_accepted(it: Keyed) -> None:
    mine = it.secrets["mine"]
    client = it.api.openai(mine)
    answer = await client.chat.completions.create(**ASK)
    assert answer.choices[0].message.content
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="none").models.list()
    async with anthropic.AsyncAnthropic(base_url=it.api.url, api_key=mine, max_retries=0) as other:
        assert (await other.get("/v1/models", cast_to=dict[str, Any]))["object"] == "list"


async def test_a_run_is_visible_to_its_team_and_to_administrators(it: Keyed) -> None:
    mine, others, alone = [await run_of(it, who) for who in ("only run", "other team", "alone")]

    async def visible(who: str) -> set[str]:
        listed = (await it.ask(who, "GET", "/v1/workflows?limit=100")).json()["data"]
        visible_ids = {id for id in (mine, others, alone) if (await it.ask(who, "GET", f"/v1/workflows/{id}")).status_code == 200}  # fmt: skip
        assert {each["id"] for each in listed} == visible_ids
        return visible_ids

    assert await visible("mine") == await visible("only read") == {mine}
    assert await visible("other team") == {others}
    assert await visible("alone") == {alone}
    assert await visible("admin") == {mine, others, alone}
    record = (await it.ask("mine", "GET", f"/v1/workflows/{mine}")).json()
    assert record["account"] == {"key_id": it.ids["only run"], "team_id": it.ids["search"]}


async def test_a_key_without_read_scope_can_cancel_a_run_but_not_see_it(it: Keyed) -> None:
    id = await run_of(it, "mine")
    response = await it.ask("only run", "POST", f"/v1/workflows/{id}/cancel", {})
    assert response.json() == {"id": id, "object": "workflow", "status": "finished"}


async def test_a_run_of_another_team_returns_404_even_while_it_runs(tmp_path: Path) -> None:
    slow = scripted("a", {"text": "x y", "stall_after_tokens": 1})
    async with keyed(tmp_path, team(workers=[slow], workflows={})) as it:
        ask = ASK | {"model": "a", "stream": True}
        async with it.api.http.stream("POST", CHAT, json=ask, headers=it.headers("mine")) as answer:
            id = answer.headers["x-podium-workflow-id"]
            theirs = await it.ask("other team", "GET", f"/v1/workflows/{id}")
            nobody = await it.ask("other team", "GET", "/v1/workflows/wf_0")
            assert (theirs.status_code, nobody.status_code) == (404, 404)
            assert theirs.text.replace(id, "wf_0") == nobody.text
            assert (await it.ask("other team", "GET", "/v1/workflows")).json()["data"] == []
            assert (await it.ask("mine", "GET", f"/v1/workflows/{id}")).json()["status"] == "running"


async def test_an_errors_detail_in_a_record_is_only_for_administrators(
    tmp_path: Path,
) -> None:
    worker = {"name": "gone", "kind": "openai", "model": "m", "base_url": "http://127.0.0.1:1", "retry": {"attempts": 1}}  # fmt: skip
    async with keyed(tmp_path, team(workers=[worker], workflows={})) as it:
        failed = await it.ask("mine", "POST", CHAT, ASK | {"model": "gone"})
        id = failed.headers["x-podium-workflow-id"]
        mine, theirs = [(await it.ask(who, "GET", f"/v1/workflows/{id}")).text for who in ("mine", "admin")]
        assert "127.0.0.1:1" in theirs
        assert "127.0.0.1:1" not in mine
        listed = (await it.ask("mine", "GET", "/v1/workflows")).text
        assert "127.0.0.1:1" not in listed


async def test_readyz_shows_details_only_to_a_valid_key(it: Keyed) -> None:
    for who in (None, "wrong"):
        assert (await it.ask(who, "GET", "/readyz")).json() == {"status": "ready"}
    assert (await it.ask("mine", "GET", "/readyz")).json()["workers"] == ["a", "b", "c"]


async def test_a_websocket_is_closed_before_authentication(it: Keyed) -> None:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    api: Any = build_api(it.api.service, directory=it.directory)
    await api({"type": "websocket", "path": "/v1/models", "headers": []}, None, send)
    assert messages == [{"type": "websocket.close", "code": 1008}]


async def test_without_keys_local_requests_are_served_whatever_credential_they_send() -> None:
    async with served(team()) as api:
        for headers in ({}, {"authorization": "Bearer none"}, {"x-api-key": "a"}, {"authorization": "?"}):
            assert (await api.http.post(CHAT, json=ASK, headers=headers)).status_code == 200
            assert (await api.http.get("/v1/replicas", headers=headers)).status_code == 200
        record = await api.newest()
        assert record["account"] is None
        refused = await api.http.get("/v1/admin/keys")
        assert refused.status_code == 403
        assert "podium keys create" in refused.json()["error"]["message"]


async def test_without_keys_requests_through_a_proxy_from_elsewhere_are_rejected() -> None:
    async with served(team()) as api:
        for client, status in (("127.0.0.1", 200), ("10.1.2.3", 403), ("10.1.2.3, 127.0.0.1", 403)):
            answer = await api.http.get("/v1/models", headers={"x-forwarded-for": client})
            assert answer.status_code == status
        assert "podium keys create NAME --scopes admin" in answer.json()["error"]["message"]
        probe = await api.http.get("/readyz", headers={"x-forwarded-for": "10.1.2.3"})
        assert (probe.status_code, probe.json()) == (200, {"status": "ready"})


@pytest.mark.parametrize(
    ("is_behind_haproxy", "headers", "status"),
    [
        (False, {}, 200),
        (False, {"x-real-ip": "10.1.2.3"}, 403),
        (False, {"x-real-ip": "127.0.0.1"}, 200),
        (True, {}, 403),
        (True, {"host": "localhost"}, 403),
        (True, {"x-forwarded-for": ""}, 403),
        (True, {"x-forwarded-for": "127.0.0.1, 10.1.2.3"}, 403),
        (True, {"x-forwarded-for": "127.0.0.1"}, 200),
        (True, {"x-forwarded-for": "127.0.0.1, ::1"}, 200),
    ],
)
async def test_without_keys_haproxys_own_connection_is_not_a_local_caller(
    is_behind_haproxy: bool, headers: dict[str, str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_behind_haproxy:
        monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    async with served(team()) as api:
        assert (await api.http.get("/v1/models", headers=headers)).status_code == status
        assert (await api.http.post(CHAT, json=ASK, headers=headers)).status_code == status
        assert (await api.http.get("/healthz", headers=headers)).status_code == 200


def test_the_tests_have_a_key_of_every_kind() -> None:
    assert {who for who in WHO if who} - {"wrong"} <= KEYS.keys()
