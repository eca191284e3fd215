"""Which pictures an engine fetches, by vLLM's own code for it, against a loopback server that counts who asks."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from conductor.errors import WorkerRefused
from serving.settings.settings import parse
from serving.workers.vllm import EngineCall
from tests.conftest import ROOT

pytestmark = pytest.mark.vllm

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
DATA_URL = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"


class Pictures:
    """Serves one picture, or sends elsewhere."""

    def __init__(self) -> None:
        self.port = 0
        self.asked = 0
        self.redirect: str | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        if self.redirect:
            writer.write(
                f"HTTP/1.1 302 Found\r\nLocation: {self.redirect}\r\nContent-Length: 0\r\n\r\n".encode()
            )
        else:
            head = f"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: {len(PIXEL)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + PIXEL)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def pictures() -> AsyncIterator[Pictures]:
    served = Pictures()
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    async with server:
        yield served


def connector(monkeypatch: pytest.MonkeyPatch, **engine: Any) -> Any:
    """What vLLM fetches a message's pictures with: by the model config of our engine arguments, in our replicas' environment."""
    from vllm import envs
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY

    from serving.deployments.build import engine_arguments, engine_deployment

    model = str(ROOT / "models/smollm2-135m")
    settings = parse({"workers": [{"name": "v", "kind": "vllm", "model": model, "engine": engine}]})
    worker: Any = settings.workers[0]
    deployment = engine_deployment(worker, settings)._bound_deployment
    for name, value in deployment.ray_actor_options["runtime_env"]["env_vars"].items():
        monkeypatch.setenv(name, value)
    config = AsyncEngineArgs(model=model, **engine_arguments(worker, settings)).create_model_config()
    return MEDIA_CONNECTOR_REGISTRY.load(
        envs.VLLM_MEDIA_CONNECTOR, allowed_media_domains=config.allowed_media_domains
    )


@pytest.mark.parametrize("named", [None, []])
async def test_vllm_fetches_from_nowhere_unless_the_settings_name_a_host(
    monkeypatch: pytest.MonkeyPatch, named: list[str] | None
) -> None:
    vllms = connector(monkeypatch, allowed_media_domains=named)
    async with pictures() as server:
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
            with pytest.raises(ValueError, match="allowed domains"):
                await vllms.fetch_image_async(f"http://{host}:{server.port}/a.png")
        assert server.asked == 0
    assert await vllms.fetch_image_async(DATA_URL)


async def test_a_named_host_is_asked_and_sends_nobody_on(monkeypatch: pytest.MonkeyPatch) -> None:
    vllms = connector(monkeypatch, allowed_media_domains=["127.0.0.1"])
    async with pictures() as server, pictures() as inside:
        address = f"http://127.0.0.1:{server.port}/a.png"
        assert await vllms.fetch_image_async(address)
        server.redirect = f"http://localhost:{inside.port}/secret.png"
        with pytest.raises(Exception, match=r"."):
            await vllms.fetch_image_async(address)
        assert (server.asked, inside.asked) == (2, 0)


@pytest.mark.parametrize("hosts", [(), ("none.invalid",), ("good.example",)])
@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1/a.png", "http://169.254.169.254/latest", "file:///etc/passwd", "https://good.example@evil.example/a.png",
     "http://[::1/a.png", "https://sub.good.example/a.png"],
)  # fmt: skip
def test_an_address_elsewhere_is_refused_with_the_setting_that_would_allow_it(
    url: str, hosts: tuple[str, ...]
) -> None:
    from serving.deployments.media import check_media

    with pytest.raises(WorkerRefused, match=r"data:image/.*engine\.allowed_media_domains"):
        check_media(_showing(DATA_URL, url), hosts)


def test_pictures_in_the_request_and_of_named_hosts_pass() -> None:
    from serving.deployments.media import check_media

    check_media(_showing(DATA_URL, "https://good.example/a.png"), ["good.example"])
    check_media(EngineCall([{"role": "user", "content": "http://127.0.0.1 is only text"}]), [])


def _showing(*urls: str) -> EngineCall:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return EngineCall([{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *parts]}])
