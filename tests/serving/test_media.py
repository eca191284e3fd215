"""Pictures that vLLM's own code fetches, against a loopback server that counts requests. Our own fetching is tested
in test_pictures_by_address.py.
"""

from typing import Any

import pytest

from serving.settings.settings import parse
from tests.conftest import ROOT
from tests.pictures import DATA_URL, pictures


def connector(monkeypatch: pytest.MonkeyPatch, **engine: Any) -> Any:
    """Return vLLM's media connector, configured with our engine arguments and the environment of our replicas."""
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
async def test_vllm_fetches_no_media_unless_a_host_is_configured(
    monkeypatch: pytest.MonkeyPatch, named: list[str] | None
) -> None:
    vllms = connector(monkeypatch, allowed_media_domains=named)
    async with pictures() as server:
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
            with pytest.raises(ValueError, match="allowed domains"):
                await vllms.fetch_image_async(f"http://{host}:{server.port}/a.png")
        assert server.n_requests == 0
    assert await vllms.fetch_image_async(DATA_URL)


async def test_images_are_fetched_only_from_configured_hosts_without_redirects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vllms = connector(monkeypatch, allowed_media_domains=["127.0.0.1"])
    async with pictures() as server, pictures() as inside:
        address = f"http://127.0.0.1:{server.port}/a.png"
        assert await vllms.fetch_image_async(address)
        server.redirect = f"http://localhost:{inside.port}/secret.png"
        with pytest.raises(Exception, match=r"."):
            await vllms.fetch_image_async(address)
        assert (server.n_requests, inside.n_requests) == (2, 0)
