"""Accepted values of `Host`, `Origin` and `Content-Type`, over real sockets."""

from typing import Any

import httpx2
import pytest
from starlette.responses import PlainTextResponse

from conductor.errors import NotAllowed
from serving.api.dialects.table import DIALECTS
from serving.edge.checks import check_host, check_origin, read_fields
from serving.edge.exchange import WaitingRoom
from serving.edge.middleware import Edge
from serving.edge.policy import HttpPolicy
from tests.serving.api.served import ASK, Served, listening, served, team

CHAT = "/v1/chat/completions"


def policy(**http: Any) -> HttpPolicy:
    return HttpPolicy.model_validate({"max_body_bytes": 10**6, "max_text_bytes": 10**6, **http})


async def ask(api: Served, **headers: str) -> httpx2.Response:
    return await api.http.post(CHAT, json=ASK, headers=headers)


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "LOCALHOST.", "127.0.0.1:1", "[::1]:8000", "podium.localhost"]
)
async def test_every_loopback_host_name_is_served(host: str) -> None:
    async with served(team()) as api:
        assert (await ask(api, host=host)).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "10.0.0.7",
        "[::2]",
        "x" * 300,
        "[::1].evil.example",
        "[::1]evil.example:80",
    ],
)
async def test_a_foreign_host_on_loopback_is_rejected(host: str) -> None:
    async with served(team()) as api:
        answers = [
            await ask(api, host=host),
            await api.http.get("/v1/workflows", headers={"host": host}),
            await api.http.get("/readyz", headers={"host": host}),
        ]
        assert [answer.status_code for answer in answers] == [403] * 3
        assert answers[0].json()["error"]["param"] == "Host"
        assert "http.hosts" in answers[0].json()["error"]["message"]
        assert not api.worker("conductor").calls
        assert (await api.http.get("/healthz", headers={"host": host})).status_code == 200


async def test_only_configured_hosts_are_served() -> None:
    async with served(team(http={"hosts": ["podium.example.com"]})) as api:
        codes = [
            (await ask(api, host=host)).status_code
            for host in ("podium.example.com", "localhost", "evil.example")
        ]
        assert codes == [200, 200, 403]
    async with served(team(http={"hosts": ["*"]})) as api:
        assert (await ask(api, host="any.example")).status_code == 200


def test_away_from_loopback_any_host_is_served_unless_hosts_are_configured() -> None:
    host = read_fields([(b"host", b"podium-serve.podium.svc.cluster.local:8000")])
    check_host(host, policy(), "10.1.2.3")
    with pytest.raises(NotAllowed):
        check_host(host, policy(hosts=["podium.example.com"]), "10.1.2.3")
    probe = read_fields([(b"host", b"10.1.2.3:8000")])  # a probe of a kubelet
    check_host(probe, policy(hosts=["podium.example.com"]), "10.1.2.3")


@pytest.mark.parametrize(("haproxy", "status"), [("", 403), ("127.0.0.1", 403), ("0.0.0.0", 200)])
async def test_behind_haproxy_the_host_is_checked_against_haproxys_address(haproxy: str, status: int) -> None:
    settings = policy()
    edge = Edge(
        PlainTextResponse("ok"), settings, WaitingRoom(10, 1000), DIALECTS.error_body, address=haproxy
    )
    async with listening(edge) as url, httpx2.AsyncClient() as http:
        response = await http.get(f"{url}/v1/models", headers={"host": "podium.example.com"})
        assert response.status_code == status


def test_one_foreign_host_header_among_several_is_rejected() -> None:
    with pytest.raises(NotAllowed):
        check_host(read_fields([(b"host", b"localhost"), (b"host", b"evil.example")]), policy(), "127.0.0.1")


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "http://localhost.evil.example", "null", "file://", "http://a@b://c", ""],
)
async def test_a_foreign_origin_is_rejected_and_its_preflight_permits_nothing(origin: str) -> None:
    async with served(team()) as api:
        answer = await ask(api, origin=origin)
        assert (answer.status_code, answer.json()["error"]["param"]) == (403, "Origin")
        preflight = await api.http.options(
            CHAT, headers={"origin": origin, "access-control-request-method": "POST"}
        )
        assert preflight.status_code == 403
        for response in (answer, preflight):
            assert not [name for name in response.headers if name.startswith("access-control-")]
        assert not api.worker("conductor").calls


async def test_no_origin_the_same_origin_and_pages_of_this_machine_are_served() -> None:
    async with served(team()) as api:
        assert (await ask(api)).status_code == 200
        for origin in (api.url, "http://localhost:3000", "http://[::1]:5173"):
            answer = await ask(api, origin=origin)
            assert answer.status_code == 200
            assert "access-control-allow-origin" not in answer.headers


async def test_a_configured_origin_may_call_and_read_the_answer() -> None:
    page = "https://app.example.com"
    async with served(team(http={"origins": [page]})) as api:
        preflight = await api.http.options(
            CHAT, headers={"origin": page, "access-control-request-method": "POST"}
        )
        assert preflight.status_code == 204
        allowed = preflight.headers["access-control-allow-headers"].split(", ")
        assert {"content-type", "authorization", "x-api-key"} <= set(allowed)
        answer = await ask(api, origin=page)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, page)
        assert "x-podium-workflow-id" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize(
    ("asked_for", "is_given"),
    [
        ("authorization,content-type,x-stainless-lang,x-stainless-retry-count,openai-organization", True),
        ("anthropic-version, anthropic-beta, anthropic-dangerous-direct-browser-access", True),
        ("x" * 2001, False),
        ("a;b", False),
        ("", False),
    ],
)
async def test_a_preflight_permits_the_requested_headers_but_no_cookies(
    asked_for: str, is_given: bool
) -> None:
    page = "https://app.example.com"
    async with served(team(http={"origins": [page]})) as api:
        headers = {
            "origin": page,
            "access-control-request-method": "POST",
            "access-control-request-headers": asked_for,
        }
        preflight = await api.http.options("/v1/responses", headers=headers)
        answer = await ask(api, origin=page)
    allowed = preflight.headers["access-control-allow-headers"]
    assert allowed == asked_for if is_given else "authorization" in allowed
    for each in (preflight, answer):
        assert "access-control-allow-credentials" not in each.headers


def test_the_servers_own_origin_is_permitted_on_any_host() -> None:
    headers = [(b"host", b"podium.example.com"), (b"origin", b"https://podium.example.com")]
    assert check_origin(read_fields(headers), policy(), "10.1.2.3") is None
    with pytest.raises(NotAllowed):
        check_origin(read_fields([headers[0], (b"origin", b"http://localhost:3000")]), policy(), "10.1.2.3")


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp", None],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/plans"])
async def test_a_body_without_the_json_content_type_returns_415(path: str, content_type: str | None) -> None:
    async with served(team()) as api:
        headers = {"content-type": content_type} if content_type else {}
        answer = await api.http.post(path, content=b'{"model": "a"}', headers=headers)
        assert (answer.status_code, answer.json()["error"]["param"]) == (415, "Content-Type")
        assert "application/json" in answer.json()["error"]["message"]


async def test_a_json_content_type_with_a_charset_is_accepted() -> None:
    async with served(team()) as api:
        assert (await ask(api, **{"content-type": "Application/JSON; charset=utf-8"})).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"content-type": "application/octet-stream"}])
async def test_a_request_without_a_body_needs_no_type(headers: dict[str, str]) -> None:
    async with served(team()) as api:
        run_id = (await ask(api)).headers["x-podium-workflow-id"]
        answer = await api.http.post(f"/v1/workflows/{run_id}/cancel", headers=headers)
        assert answer.request.headers.get("content-type") == headers.get("content-type")
        assert answer.status_code == 200
