"""Baseline of the bench: an ingress that only reads the body and answers a constant."""

import functools
from typing import Any, cast

from fastapi import FastAPI, Request
from ray import serve
from ray.serve import Application
from starlette.responses import Response

api = FastAPI()


@functools.cache
def constant(size_bytes: int) -> bytes:
    return b'{"constant":"' + b"x" * (size_bytes - 15) + b'"}'


@api.api_route("/{size_bytes}", methods=["GET", "POST"])
async def answer(request: Request, size_bytes: int) -> Response:
    await request.body()
    return Response(constant(size_bytes), media_type="application/json")


class Baseline:
    """Ingress deployment with the routes of `api`."""


def build(_: dict[str, Any]) -> Application:
    """Return the Serve application, configured like the router but without tracing."""
    options = {"num_cpus": 0.1, "runtime_env": {"env_vars": {"RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH": ""}}}
    serving: Any = serve
    deployment: Any = serving.deployment(serving.ingress(api)(Baseline))
    return cast(Application, deployment.options(max_ongoing_requests=4096, ray_actor_options=options).bind())
