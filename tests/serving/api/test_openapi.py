"""`GET /v1/openapi.json`: it has every route, with the bodies that the routes accept."""

from typing import Any

import jsonschema
import pytest
from starlette.requests import Request

from serving.api.app import build_api
from serving.api.openapi import BODIES, document, plain
from serving.api.respond import constant
from serving.pool import build_pool
from serving.sessions.service import Service
from serving.settings.settings import parse
from tests.serving.api.served import ASK, served, team


def routes() -> Any:
    return build_api(Service(build_pool(parse(team()), {}, engines={}))).routes


def test_the_description_has_every_route() -> None:
    served_routes = {
        (method, route.path)
        for route in routes()
        for method in (getattr(route, "methods", None) or set()) - {"HEAD"}
        if getattr(route, "include_in_schema", True)
    }
    paths = document(routes())["paths"]
    described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert described == {(method, path.replace(":path", "")) for method, path in served_routes}
    for path, methods in paths.items():
        for method, operation in methods.items():
            assert operation["description"], (method, path)
            assert {"default"} <= operation["responses"].keys()


def test_every_route_that_fastapi_does_not_describe_is_in_the_table() -> None:
    read_by_hand = {
        f"{method} {route.path}"
        for route in plain(routes())
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert read_by_hand <= BODIES.keys()


WITHOUT_BODY = ("cancel", "reload")
"""Last parts of paths without a request body."""


def test_every_route_with_a_body_describes_it() -> None:
    bare = [
        path
        for path, methods in document(routes())["paths"].items()
        if "post" in methods and "requestBody" not in methods["post"] and not path.endswith(WITHOUT_BODY)
    ]
    assert bare == []


async def test_the_described_chat_schema_matches_what_is_accepted() -> None:
    async with served(team()) as api:
        described = (await api.http.get("/v1/openapi.json")).json()
        await api.ok()
    body = described["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    schema = body | {"components": described["components"]}
    jsonschema.validate(ASK, schema)
    for wrong in (ASK | {"n": 9}, ASK | {"messages": []}, {"messages": ASK["messages"]}, ASK | {"top_p": 2}):
        assert list(jsonschema.Draft202012Validator(schema).iter_errors(wrong)), wrong
    jsonschema.Draft202012Validator.check_schema(schema)


async def test_a_document_that_failed_to_build_is_built_again() -> None:
    app, n_calls = build_api(Service(build_pool(parse(team()), {}, engines={}))), 0
    request = Request({"type": "http", "app": app, "headers": []})

    def make(_routes: Any) -> str:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 1:
            raise RuntimeError("no memory")
        return "Hi."

    with pytest.raises(RuntimeError):
        await constant(request, make)
    bodies = [(await constant(request, make)).body for _ in range(2)]
    assert (bodies, n_calls) == ([b'"Hi."'] * 2, 2)
