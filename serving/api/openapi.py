"""`GET /v1/openapi.json`: the whole API in OpenAPI's words. What FastAPI's own routes take is read from them; the
bodies of the others, which are read by hand, are in `BODIES`. There is no page for it: FastAPI's loads scripts
from a CDN.
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
DESCRIPTION = (
    "One endpoint behind which many models answer. A key is sent as `Authorization: Bearer` or `x-api-key`."
)


@dataclass(frozen=True, slots=True)
class Body:
    """What a route takes, and what kinds of content it answers with."""

    model: type[BaseModel] | None = None
    """None: none, or what JSON Schema says badly, such as a file."""
    content_type: str = "application/json"
    answers: tuple[str, ...] = ("application/json",)


class FileForm(BaseModel):
    """The form of `POST /v1/files`."""

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
"""By method and path: a line for each route that FastAPI does not read the body of."""
router = APIRouter()


@router.get("/v1/openapi.json")
async def openapi(request: Request) -> Response:
    """This description."""
    return constant(request, document)


def document(routes: Sequence[BaseRoute]) -> Json:
    """The description of `routes`; mounted folders are not in it."""
    read = get_openapi(
        title="Podium",
        version="1",
        description=DESCRIPTION,
        routes=routes,
    )
    refs, own = models_json_schema([(each, "validation") for each in {Error, *_models()}], ref_template=REF)
    components: Json = read.setdefault("components", {})
    components["schemas"] = components.get("schemas", {}) | own.get("$defs", {})
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for route in plain(routes):
        for method in sorted((route.methods or set()) - {"HEAD"}):
            body = BODIES.get(f"{method} {route.path}", Body())
            schema = refs.get((body.model, "validation")) if body.model else None
            read["paths"].setdefault(route.path, {})[method.lower()] = _operation(route, method, body, schema)
    for place, body in BODIES.items():  # FastAPI describes some of them, but not their bodies
        method, _, path = place.partition(" ")
        operation = read["paths"][path][method.lower()]
        if body.model is not None and "requestBody" not in operation:
            operation["requestBody"] = _request_body(body, refs[body.model, "validation"])
    for path in read["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)  # FastAPI's word; ours is 400, in OpenAI's shape
            operation["responses"].setdefault("default", _error())
    return read | {"security": [{"key": []}, {}]}


def plain(routes: Sequence[BaseRoute]) -> list[Route]:
    """The routes that FastAPI does not describe."""
    return [route for route in routes if isinstance(route, Route) and not isinstance(route, APIRoute)]


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
        "description": "An error; `param` names the field.",
        "content": {"application/json": {"schema": schema}},
    }
