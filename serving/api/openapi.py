"""`GET /v1/openapi.json`: the OpenAPI document of the whole API.

FastAPI generates the part for its own routes. The other routes parse their bodies themselves; `BODIES`
declares those. There is no documentation page, because FastAPI's loads scripts from a CDN.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from serving.api.admin_schema import Error
from serving.api.batches import NewBatch
from serving.api.dialects.chat.schema import ChatRequest
from serving.api.dialects.completions import CompletionRequest
from serving.api.dialects.embeddings import EmbeddingsRequest
from serving.api.dialects.messages.schema import MessagesRequest, Prompt
from serving.api.dialects.responses.conversations import NewConversation, NewItems, NewMetadata
from serving.api.dialects.responses.routes import CompactRequest, CountRequest
from serving.api.dialects.responses.schema import ResponsesRequest
from serving.api.feedback import FeedbackBody
from serving.api.respond import constant

Json = dict[str, Any]
REF = "#/components/schemas/{model}"
DESCRIPTION = "One OpenAI-compatible endpoint for many models. Send the API key as `Authorization: Bearer` or `x-api-key`."


@dataclass(frozen=True, slots=True)
class Body:
    """Body that a route accepts, and the content types of its responses."""

    model: type[BaseModel] | None = None
    """Schema of the body, or None if there is no body or if it has no JSON Schema, such as a file."""
    content_type: str = "application/json"
    answers: tuple[str, ...] = ("application/json",)


class FileForm(BaseModel):
    """Form of `POST /v1/files`."""

    purpose: Literal["batch", "user_data"]
    file: Annotated[bytes, Field(json_schema_extra={"type": "string", "format": "binary"})]
    anchor: Literal["created_at"] | None = Field(default=None, alias="expires_after[anchor]")
    seconds: int | None = Field(default=None, alias="expires_after[seconds]", ge=3_600, le=2_592_000)


STREAMED = ("application/json", "text/event-stream")
BODIES: Mapping[str, Body] = {
    "POST /v1/chat/completions": Body(ChatRequest, answers=STREAMED),
    "POST /v1/completions": Body(CompletionRequest, answers=STREAMED),
    "POST /v1/embeddings": Body(EmbeddingsRequest),
    "POST /v1/plans": Body(ChatRequest),
    "POST /v1/responses": Body(ResponsesRequest, answers=STREAMED),
    "POST /v1/responses/input_tokens": Body(CountRequest),
    "POST /v1/responses/compact": Body(CompactRequest),
    "POST /v1/conversations": Body(NewConversation),
    "POST /v1/conversations/{conversation_id}": Body(NewMetadata),
    "POST /v1/conversations/{conversation_id}/items": Body(NewItems),
    "POST /v1/messages": Body(MessagesRequest, answers=STREAMED),
    "POST /v1/messages/count_tokens": Body(Prompt),
    "POST /v1/files": Body(FileForm, "multipart/form-data"),
    "POST /v1/batches": Body(NewBatch),
    "POST /v1/workflows/{id}/feedback": Body(FeedbackBody),
}
"""Bodies by method and path, for each route whose body FastAPI does not parse."""
router = APIRouter()


@router.get("/v1/openapi.json")
async def openapi(request: Request) -> Response:
    """Return the OpenAPI document of the API."""
    return await constant(request, document)


def document(routes: Sequence[BaseRoute]) -> Json:
    """Return the OpenAPI document for `routes`. It does not describe mounted folders."""
    read = get_openapi(title="Podium", version="1", description=DESCRIPTION, routes=routes)
    refs, own = models_json_schema([(each, "validation") for each in {Error, *_models()}], ref_template=REF)
    components: Json = read.setdefault("components", {})
    components["schemas"] = components.get("schemas", {}) | own.get("$defs", {})
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for route in plain(routes):
        for method in sorted((route.methods or set()) - {"HEAD"}):
            body = BODIES.get(f"{method} {route.path}", Body())
            schema = refs.get((body.model, "validation")) if body.model else None
            read["paths"].setdefault(route.path, {})[method.lower()] = _operation(route, method, body, schema)
    for place, body in BODIES.items():  # FastAPI describes some of these routes, but not their bodies
        method, _, path = place.partition(" ")
        operation = read["paths"][path][method.lower()]
        if body.model is not None and "requestBody" not in operation:
            operation["requestBody"] = _request_body(body, refs[body.model, "validation"])
    for path in read["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)  # FastAPI's default; ours is 400, in OpenAI's format
            operation["responses"].setdefault("default", _error())
    return read | {"security": [{"key": []}, {}]}


def plain(routes: Sequence[BaseRoute]) -> list[Route]:
    """Return the routes that FastAPI does not describe, except for those of the web page."""
    described = (route for route in routes if isinstance(route, Route) and route.include_in_schema)
    return [route for route in described if not isinstance(route, APIRoute)]


def _models() -> set[type[BaseModel]]:
    return {body.model for body in BODIES.values() if body.model is not None}


def _operation(route: Route, method: str, body: Body, schema: Json | None) -> Json:
    names = list(route.param_convertors)
    about = " ".join((route.endpoint.__doc__ or "").split())
    operation: Json = {
        "summary": about.partition(". ")[0],
        "description": about,
        "operationId": f"{method.lower()}{route.path.replace('/', '_')}",
        "responses": {"200": {"description": "OK", "content": {kind: {} for kind in body.answers}}},
    }
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if schema is not None:
        operation["requestBody"] = _request_body(body, schema)
    return operation


def _request_body(body: Body, schema: Json) -> Json:
    return {"required": True, "content": {body.content_type: {"schema": schema}}}


def _error() -> Json:
    schema = {"$ref": REF.format(model=Error.__name__)}
    return {
        "description": "The request failed. `param` names the field that caused it, if any.",
        "content": {"application/json": {"schema": schema}},
    }
