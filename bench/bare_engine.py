"""The deployment's engine, driven from inside its own replica: what vLLM gives where nothing stands between.

`build` is `serving.app.build_app` with one method more on the engines. `build_door` is the HTTP address of that method.
"""

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Any, cast

from fastapi import FastAPI, Request
from ray import serve
from ray.serve import Application
from starlette.responses import JSONResponse, Response
from vllm.sampling_params import RequestOutputKind, SamplingParams

from serving.app import application
from serving.deployments.engine import Engine

APPLICATION, DEPLOYMENT = "podium", "vllm-writer"

api = FastAPI()


class BareEngine(Engine):
    """The engine that the router asks, and a way around everything but vLLM."""

    async def bare(self, lines: list[list[str]], max_tokens: int) -> dict[str, Any]:
        """Every line of prompts one after another, all lines at once, straight to `AsyncLLM.generate`.

        Returns:
            `tokens`, `wall_s`, and each prompt's `first_token_s`.
        """
        began_s = time.monotonic()
        told = await asyncio.gather(*(self._line(line, max_tokens) for line in lines))
        wall_s = time.monotonic() - began_s
        every = [one for line in told for one in line]
        tokens = sum(tokens for _, tokens in every)
        return {"tokens": tokens, "wall_s": wall_s, "first_token_s": [first for first, _ in every]}

    async def _line(self, prompts: Sequence[str], max_tokens: int) -> list[tuple[float, int]]:
        return [await self._one(prompt, max_tokens) for prompt in prompts]

    async def _one(self, prompt: str, max_tokens: int) -> tuple[float, int]:
        began_s, first_s, tokens = time.monotonic(), 0.0, 0
        conversation: list[Any] = [{"role": "user", "content": prompt}]
        _, rendered = await self._engine.renderer.render_chat_async([conversation], self._chat)
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, output_kind=RequestOutputKind.DELTA)
        async for output in self._engine.generate(rendered[0], sampling, uuid.uuid4().hex):
            first_s = first_s or time.monotonic() - began_s
            tokens += len(output.outputs[0].token_ids)
        return first_s, tokens


@api.get("/")
async def there() -> Response:
    """The door is open."""
    return Response()


@api.post("/")
async def bare(request: Request) -> Response:
    """`BareEngine.bare` of the body's `lines` and `max_tokens`."""
    handle: Any = serve.get_deployment_handle(DEPLOYMENT, APPLICATION)
    return JSONResponse(await handle.bare.remote(**await request.json()))


class Door:
    """One replica of it."""


def build(args: dict[str, Any]) -> Application:
    """The application of the settings file `args` names, its engines with `bare`."""
    return application(args, BareEngine)


def build_door(_: dict[str, Any]) -> Application:
    """The Serve application that asks them."""
    deployment: Any = serve.deployment(serve.ingress(api)(Door))
    return cast(Application, deployment.options(ray_actor_options={"num_cpus": 0.1}).bind())
