"""The admin API: changes apply immediately on this router and soon on others, and the OpenAPI description is
complete.
"""

import asyncio
import json
import logging
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import jsonschema
import pytest

from serving.accounts.directory import Directory
from serving.api.app import build_api
from serving.database.address import Address, sqlite_address
from serving.pool import build_pool
from serving.sessions.service import Service
from serving.settings.settings import parse
from serving.telemetry.logs import FIELDS
from tests.serving.api.keyed import Keyed, keyed
from tests.serving.api.served import ASK, served, team

KEYS = "/v1/admin/keys"


async def models(it: Keyed, secret: str) -> int:
    answer = await it.api.http.get("/v1/models", headers={"authorization": f"Bearer {secret}"})
    return answer.status_code


async def test_a_key_is_created_used_rotated_and_revoked_immediately(
    store_address: Address,
) -> None:
    async with keyed(store_address) as it:
        answer = await it.ask("admin", "POST", KEYS, {"name": "app", "team": "search", "scopes": ["run"]})
        assert answer.headers["cache-control"] == "no-store"
        key = answer.json()
        assert await models(it, key["secret"]) == 200
        rotated = (await it.ask("admin", "POST", f"{KEYS}/{key['id']}/rotate", {})).json()
        assert (rotated["id"], rotated["team"]) == (key["id"], key["team"])
        assert [await models(it, each["secret"]) for each in (key, rotated)] == [401, 200]
        revoked = (await it.ask("admin", "DELETE", f"{KEYS}/{key['id']}")).json()
        assert revoked["state"] == "revoked"
        assert await models(it, rotated["secret"]) == 401
        assert (await it.ask("admin", "GET", f"{KEYS}/{key['id']}")).json() == revoked
        assert (await it.ask("admin", "POST", f"{KEYS}/{key['id']}/rotate", {})).status_code == 400


WRONG_CHANGES: tuple[tuple[Any, str], ...] = (
    ({"scopes": ["admin"]}, "scopes"),
    ({"scopes": []}, "scopes"),
    ({"scopes": None}, "scopes"),
    ({"scopes": ["read", "root"]}, "scopes[1]"),
    ({"expires_at": "2000-01-01T00:00:00Z"}, "expires_at"),
    ({"expires_at": "2100-01-01T00:00:00"}, "expires_at"),
    ({"expires_at": "9999-12-31T23:59:59-12:00"}, "expires_at"),
    ({"expires_at": "0001-01-01T00:00:00+14:00"}, "expires_at"),
    ({"expires_at": "soon"}, "expires_at"),
    ({"name": "x"}, "name"),
    ({"team": "sales", "scopes": ["read"]}, "team"),
    ({"id": "key_0"}, "id"),
    ({"revoked_at": None}, "revoked_at"),
    ({"revoked_us": None}, "revoked_us"),
)


async def test_changed_scopes_and_expiry_apply_immediately(
    store_address: Address,
) -> None:
    async with keyed(store_address) as it:
        path = f"{KEYS}/{it.ids['mine']}"
        before = (await it.ask("admin", "GET", path)).json()
        later = {"expires_at": "2100-01-01T00:00:00Z"}
        changed = (await it.ask("admin", "POST", path, {"scopes": ["read"]})).json()
        assert changed == before | {"scopes": ["read"]}
        assert (await it.ask("mine", "POST", "/v1/chat/completions", ASK)).status_code == 403
        assert (await it.ask("mine", "GET", "/v1/workflows")).status_code == 200
        assert (await it.ask("admin", "POST", path, later)).json() == changed | later
        assert (await it.ask("admin", "POST", path, {})).json() == changed | later
        assert (await it.ask("admin", "POST", path, {"expires_at": None})).json() == changed
        for body, param in WRONG_CHANGES:
            refused = await it.ask("admin", "POST", path, body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        await it.ask("admin", "DELETE", path)
        assert (await it.ask("admin", "POST", path, {"scopes": ["run"]})).status_code == 400


async def test_only_an_administrator_may_change_a_key(
    tmp_path: Path,
) -> None:
    async with keyed(tmp_path) as it:
        before = (await it.ask("admin", "GET", KEYS)).json()
        for who in ("mine", "only run", "only read", "other team", "alone"):
            for name in ("mine", "only run", "other team", "alone", "admin"):
                for reference in (it.ids[name], name):
                    for body in ({"scopes": ["admin"]}, {"scopes": ["run", "read"]}, {"expires_at": None}):
                        refused = await it.ask(who, "POST", f"{KEYS}/{reference}", body)
                        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_allowed")
        assert (await it.ask("admin", "GET", KEYS)).json() == before


async def test_only_an_administrator_can_make_a_key_without_a_team_an_administrator(tmp_path: Path) -> None:
    async with keyed(tmp_path) as it:
        path = f"{KEYS}/{it.ids['alone']}"
        assert (await it.ask("admin", "POST", path, {"scopes": ["admin"]})).json()["scopes"] == ["admin"]
        assert (await it.ask("alone", "POST", path, {"scopes": ["read"]})).status_code == 200
        assert (await it.ask("alone", "POST", path, {"scopes": ["admin"]})).status_code == 403


async def test_an_expired_key_works_again_after_its_expiry_is_changed(
    tmp_path: Path,
) -> None:
    async with keyed(tmp_path) as it:
        path = f"{KEYS}/{it.ids['mine']}"
        soon = datetime.fromtimestamp(time.time() + 0.3, UTC).isoformat()
        assert (await it.ask("admin", "POST", path, {"expires_at": soon})).status_code == 200
        async with asyncio.timeout(10):
            while await models(it, it.secrets["mine"]) != 401:
                await asyncio.sleep(0.05)
        expired = (await it.ask("admin", "POST", path, {"scopes": ["read"]})).json()
        assert expired["state"] == "expired", "another field changes, and the expiry stays"
        by_name = await it.ask("admin", "POST", f"{KEYS}/mine", {"expires_at": None})
        assert by_name.status_code == 404, "the name may be that of a newer key"
        assert (await it.ask("admin", "POST", path, {"expires_at": None})).json()["state"] == "active"
        assert await models(it, it.secrets["mine"]) == 200


async def test_concurrent_changes_of_different_fields_both_apply(
    store_address: Address,
) -> None:
    async with keyed(store_address) as it:
        path, later = f"{KEYS}/{it.ids['mine']}", "2100-01-01T00:00:00Z"
        for n in range(10):
            scopes, expires_at = (["read"], later) if n % 2 else (["run"], None)
            bodies = ({"scopes": scopes}, {"expires_at": expires_at}, {})
            answers = await asyncio.gather(*(it.ask("admin", "POST", path, body) for body in bodies))
            assert {answer.status_code for answer in answers} == {200}
            changed = (await it.ask("admin", "GET", path)).json()
            assert (changed["scopes"], changed["expires_at"]) == (scopes, expires_at)


async def test_a_key_revoked_during_a_change_stays_revoked(store_address: Address) -> None:
    async with keyed(store_address) as it:
        path = f"{KEYS}/{it.ids['mine']}"
        changes = [it.ask("admin", "POST", path, {"scopes": ["run"], "expires_at": None}) for _ in range(5)]
        answers = await asyncio.gather(it.ask("admin", "DELETE", path), *changes)
        assert {answer.status_code for answer in answers} <= {200, 400}
        assert (await it.ask("admin", "GET", path)).json()["state"] == "revoked"
        assert await models(it, it.secrets["mine"]) == 401


async def test_only_an_accepted_change_of_a_key_is_logged_with_its_author(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with keyed(tmp_path) as it:
        path = f"{KEYS}/{it.ids['mine']}"
        with caplog.at_level(logging.INFO, logger="podium"):
            await it.ask("admin", "POST", path, {"expires_at": "2100-01-01T00:00:00Z"})
            await it.ask("admin", "POST", path, {"scopes": ["admin"]})
            await it.ask("mine", "POST", path, {"scopes": ["run"]})
        entries = [getattr(each, FIELDS) for each in caplog.records if each.message == "key changed"]
        assert entries == [
            {
                "by_key_id": it.ids["admin"],
                "changed_key_id": it.ids["mine"],
                "scopes": ["read", "run"],
                "expires": "2100-01-01T00:00:00Z",
            }
        ]
        assert not [secret for secret in it.secrets.values() if secret in caplog.text]


async def test_a_key_revoked_at_one_replica_is_rejected_everywhere_within_ten_seconds(
    store_address: Address,
) -> None:
    directory = Directory(store_address)
    async with keyed(store_address) as it, served(team(), directory=directory) as other:
        used = {"authorization": f"Bearer {it.secrets['mine']}"}
        statuses = [(await other.http.get("/v1/models", headers=used)).status_code]
        await it.ask("admin", "DELETE", f"{KEYS}/{it.ids['mine']}")
        revoked_s = time.monotonic()
        while statuses[-1] == 200:
            await asyncio.sleep(0.1)
            statuses.append((await other.http.get("/v1/models", headers=used)).status_code)
            assert time.monotonic() - revoked_s < 10
        assert statuses[-1] == 401
    await directory.aclose()


async def test_the_first_key_closes_a_server_that_was_open(tmp_path: Path) -> None:
    directory = Directory(sqlite_address(tmp_path / "podium.db"))
    async with served(team(), directory=directory) as api:
        assert (await api.http.get("/v1/models")).status_code == 200
        operator = Directory(sqlite_address(tmp_path / "podium.db"))
        key, _ = await operator.create_key("app")
        await operator.aclose()
        made_s = time.monotonic()
        while (await api.http.get("/v1/models")).status_code == 200:
            await asyncio.sleep(0.1)
            assert time.monotonic() - made_s < 10
        assert (await api.http.get("/v1/models")).status_code == 401
        headers = {"authorization": f"Bearer {key.reveal()}"}
        assert (await api.http.get("/v1/models", headers=headers)).status_code == 200
    await directory.aclose()


async def test_lists_continue_on_the_next_page_and_contain_no_secret(tmp_path: Path) -> None:
    async with keyed(tmp_path) as it:
        first = (await it.ask("admin", "GET", f"{KEYS}?limit=4")).json()
        rest = (await it.ask("admin", "GET", f"{KEYS}?limit=4&after={first['data'][-1]['id']}")).json()
        assert [first["has_more"], rest["has_more"]] == [True, False]
        names = [key["name"] for key in first["data"] + rest["data"]]
        assert sorted(names) == sorted(it.ids.keys() - {"search", "sales"})
        only = (await it.ask("admin", "GET", f"{KEYS}?team=sales")).json()["data"]
        assert [key["name"] for key in only] == ["other team"]
        assert not any("secret" in key for key in first["data"])
        teams = (await it.ask("admin", "GET", "/v1/admin/teams")).json()["data"]
        assert [each["name"] for each in teams] == ["search", "sales"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (KEYS, {"name": ""}, 400, "name"),
        (KEYS, {"name": " x"}, 400, "name"),
        (KEYS, {"name": "x", "scopes": []}, 400, "scopes"),
        (KEYS, {"name": "x", "scopes": ["root"]}, 400, "scopes[0]"),
        (KEYS, {"name": "x", "scopes": ["admin"], "team": "search"}, 400, "team"),
        (KEYS, {"name": "x", "team": "nobody"}, 404, "team"),
        (KEYS, {"name": "x", "expires_at": "2020-01-01T00:00:00Z"}, 400, "expires_at"),
        (KEYS, {"name": "x", "expires_at": "9999-12-31T23:59:59-12:00"}, 400, "expires_at"),
        (KEYS, {"name": "x", "expires_at": "2099-01-01T00:00:00"}, 400, "expires_at"),
        (KEYS, {"name": "x", "colour": "red"}, 400, "colour"),
        ("/v1/admin/teams", {"name": "search"}, 400, "name"),
        ("/v1/admin/teams/nobody", {"enabled": True}, 404, "team"),
        (f"{KEYS}/key_0/rotate", {}, 404, "key"),
    ],
)  # fmt: skip
async def test_an_invalid_field_is_named_in_the_error(
    tmp_path: Path, path: str, body: Any, status: int, param: str
) -> None:
    async with keyed(tmp_path) as it:
        answer = await it.ask("admin", "POST", path, body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def test_a_budget_applies_immediately_and_unset_fields_do_not_change(store_address: Address) -> None:
    async with keyed(store_address) as it:
        for kind, id in (("teams", it.ids["search"]), ("keys", it.ids["mine"])):
            path = f"/v1/admin/{kind}/{id}/budget"
            empty = (await it.ask("admin", "GET", path)).json()
            assert empty["id"] == id
            nothing = {"limit_usd": None, "spent_usd": "0", "held_usd": "0", "left_usd": None}
            assert [empty[each] | nothing for each in ("day", "month")] == [empty["day"], empty["month"]]
            await it.ask("admin", "POST", path, {"day_usd": "12.000000000001", "month_usd": 100})
            changed = (await it.ask("admin", "POST", path, {"month_usd": None})).json()
            limited = {"limit_usd": "12.000000000001", "left_usd": "12.000000000001"}
            assert changed == empty | {"day": empty["day"] | limited}
            for wrong in ({"day_usd": -1}, {"day_usd": "NaN"}, {"day_usd": "1e9"}, {"year_usd": 1}):
                assert (await it.ask("admin", "POST", path, wrong)).status_code == 400


async def test_the_keys_of_a_disabled_team_are_rejected_until_it_is_enabled(tmp_path: Path) -> None:
    async with keyed(tmp_path) as it:
        for enabled, status in ((False, 401), (True, 200)):
            changed = await it.ask(
                "admin", "POST", f"/v1/admin/teams/{it.ids['search']}", {"enabled": enabled}
            )
            assert changed.json()["enabled"] is enabled
            assert await models(it, it.secrets["mine"]) == status
            assert await models(it, it.secrets["other team"]) == 200


async def test_every_change_is_logged_with_its_authors_id(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "podium")
    async with keyed(tmp_path) as it:
        key = (await it.ask("admin", "POST", KEYS, {"name": "app"})).json()
        await it.ask("admin", "DELETE", f"{KEYS}/{key['id']}")
        lines = [
            (record.message, record.__dict__["fields"])
            for record in caplog.records
            if record.name == "podium"
        ]
        assert lines == [
            (
                "key created",
                {"by_key_id": it.ids["admin"], "made_key_id": key["id"], "scopes": ["read", "run"]},
            ),
            ("key revoked", {"by_key_id": it.ids["admin"], "revoked_key_id": key["id"]}),
        ]


async def test_the_openapi_description_has_every_admin_route_with_its_errors(
    tmp_path: Path,
) -> None:
    api: Any = build_api(Service(build_pool(parse(team()), {}, engines={})))
    routes = {
        (method.lower(), route.path)
        for route in api.routes
        for method in getattr(route, "methods", set()) - {"HEAD"}
        if route.path.startswith("/v1/admin") and not route.path.endswith("openapi.json")
    }
    async with keyed(tmp_path) as it:
        document = (await it.ask("admin", "GET", "/v1/admin/openapi.json")).json()
        described = {(method, path) for path, methods in document["paths"].items() for method in methods}
        assert described == routes
        assert document["security"] == [{"key": []}]
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                assert operation["description"], (method, path)
                assert {"401", "403", "503"} <= operation["responses"].keys()
        key = (await it.ask("admin", "POST", KEYS, {"name": "app", "team": "search"})).json()
        for name, value in (("KeyWithSecret", key), ("Keys", (await it.ask("admin", "GET", KEYS)).json())):
            schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
            jsonschema.validate(value, json.loads(json.dumps(schema)))


@pytest.mark.parametrize("server", ["http://10.1.2.3:8000", "http://podium.example.com", "http://[::2]:8000"])
async def test_beyond_loopback_no_request_is_served_until_a_key_exists(tmp_path: Path, server: str) -> None:
    directory = Directory(sqlite_address(tmp_path / "podium.db"))
    api = build_api(Service(build_pool(parse(team()), {}, engines={})), directory=directory)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(api), base_url=server) as http:
        for path in ("/v1/models", "/v1/workflows", KEYS):
            refused = await http.get(path, headers={"authorization": "Bearer none"})
            assert refused.status_code == 403
            assert "podium keys create NAME --scopes admin" in refused.json()["error"]["message"]
        assert [(await http.get(path)).status_code for path in ("/healthz", "/readyz")] == [200, 200]
        key, _ = await directory.create_key("app")
        headers = {"authorization": f"Bearer {key.reveal()}"}
        api.state.authenticator.forget()
        assert (await http.get("/v1/models", headers=headers)).status_code == 200
        assert (await http.get("/v1/models")).status_code == 401
    await directory.aclose()
