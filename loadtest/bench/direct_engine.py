"""Drive the deployment's engine from inside its own replica, to measure vLLM alone on this machine.

`build` is `serving.app.build_app` with additional methods on the engines. `build_ingress` exposes these
methods over HTTP: `/` measures vLLM alone, and `/stream` passes vLLM's output through an empty ingress. Such
an ingress adds the least that a router on Ray Serve can add.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

from fastapi import FastAPI, Request
from ray import serve
from ray.serve import Application
from starlette.responses import JSONResponse, Response, StreamingResponse
from vllm.sampling_params import RequestOutputKind, SamplingParams

from serving.app import application
from serving.deployments.engine import Engine

APPLICATION, DEPLOYMENT = "podium", "vllm-writer"

api = FastAPI()


class DirectEngine(Engine):
    """Engine that the router calls, with methods that bypass everything but vLLM."""

    async def generate_directly(self, lines: list[list[str]], max_tokens: int) -> dict[str, Any]:
        """Call `AsyncLLM.generate` for lines of prompts that run concurrently. Return `tokens`, `wall_s` and
        the `first_token_s` of each prompt.
        """
        began_s = time.monotonic()
        results = await asyncio.gather(*(self._generate_line(line, max_tokens) for line in lines))
        wall_s = time.monotonic() - began_s
        prompts = [prompt for line in results for prompt in line]
        tokens = sum(tokens for _, tokens in prompts)
        return {"tokens": tokens, "wall_s": wall_s, "first_token_s": [first_s for first_s, _ in prompts]}

    async def _generate_line(self, prompts: Sequence[str], max_tokens: int) -> list[tuple[float, int]]:
        return [await self._generate(prompt, max_tokens) for prompt in prompts]

    async def _generate(self, prompt: str, max_tokens: int) -> tuple[float, int]:
        began_s, first_s, tokens = time.monotonic(), 0.0, 0
        async for n_tokens, _ in self.stream_directly(prompt, max_tokens):
            first_s = first_s or time.monotonic() - began_s
            tokens += n_tokens
        return first_s, tokens

    async def stream_directly(self, prompt: str, max_tokens: int) -> AsyncGenerator[tuple[int, str]]:
        """Yield token counts and text as vLLM produces them."""
        conversation: list[Any] = [{"role": "user", "content": prompt}]
        _, rendered = await self._engine.renderer.render_chat_async([conversation], self._chat)
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, output_kind=RequestOutputKind.DELTA)
        async for output in self._engine.generate(rendered[0], sampling, uuid.uuid4().hex):
            yield len(output.outputs[0].token_ids), output.outputs[0].text


@api.get("/")
async def health() -> Response:
    return Response()


@api.post("/")
async def generate(request: Request) -> Response:
    """Call `DirectEngine.generate_directly` with the body's `lines` and `max_tokens`."""
    handle: Any = cast(Any, serve).get_deployment_handle(DEPLOYMENT, APPLICATION)
    return JSONResponse(await handle.generate_directly.remote(**await request.json()))


@api.post("/stream")
async def stream(request: Request) -> Response:
    handle: Any = cast(Any, serve).get_deployment_handle(DEPLOYMENT, APPLICATION)
    pieces = handle.options(stream=True).stream_directly.remote(**await request.json())
    return StreamingResponse(text.encode() async for _, text in pieces)


class DirectIngress:
    """Ingress deployment with the routes of `api`."""


def build(args: dict[str, Any]) -> Application:
    """Build the application of the settings file in `args`, with `DirectEngine` as its engines."""
    return application(args, DirectEngine)


def build_ingress(_: dict[str, Any]) -> Application:
    serving: Any = serve
    deployment: Any = serving.deployment(serving.ingress(api)(DirectIngress))
    return cast(Application, deployment.options(ray_actor_options={"num_cpus": 0.1}).bind())
