"""Pictures that an engine's replica fetches: only from named hosts, and only at public addresses."""

import pytest

from conductor.errors import WorkerRefused
from serving.deployments import media
from serving.deployments.media import inline_pictures
from serving.workers.vllm import EngineCall
from tests.pictures import DATA_URL, PIXEL, pictures
from tests.resolver import Names


def showing(*urls: str) -> EngineCall:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return EngineCall([{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *parts]}])


def addresses_in(call: EngineCall) -> list[str]:
    return [part["image_url"]["url"] for part in call.messages[0]["content"][1:]]


@pytest.mark.parametrize("hosts", [(), ("none.invalid",), ("good.example", "127.0.0.1")])
@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.2/a.png", "http://169.254.169.254/latest", "file:///etc/passwd", "https://good.example@evil.example/a.png",
     "http://[::1/a.png", "https://sub.good.example/a.png", "http://2130706433/a.png", "http://0177.0.0.1/a.png",
     "http://[::ffff:127.0.0.1]/a.png", "https://user:word@good.example/a.png", "ftp://good.example/a.png", "//good.example/a.png",
     "https://good.example.evil.example/a.png", "https://evil.example#good.example", "https://evil.example\\@good.example/a.png"],
)  # fmt: skip
async def test_an_unconfigured_host_is_rejected_with_the_setting(url: str, hosts: tuple[str, ...]) -> None:
    with pytest.raises(WorkerRefused, match=r"Send the image as data:.*engine\.allowed_media_domains"):
        await inline_pictures(showing(DATA_URL, url), hosts)


async def test_vllm_gets_the_image_instead_of_its_url() -> None:
    async with pictures() as server:
        messages = await inline_pictures(showing(DATA_URL, server.url(), server.url()), ["127.0.0.1"])
        assert addresses_in(messages) == [DATA_URL] * 3
        assert messages.messages[0]["content"][0] == {"type": "text", "text": "What is it?"}
        assert server.n_requests == 1


async def test_inline_images_and_text_are_not_changed() -> None:
    for call in (showing(DATA_URL), EngineCall([{"role": "user", "content": "http://127.0.0.1 is text"}])):
        assert await inline_pictures(call, []) is call


@pytest.mark.parametrize(
    "addresses",
    ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", ("93.184.216.34", "127.0.0.1")],
)
async def test_a_configured_host_at_an_internal_address_is_not_contacted(
    monkeypatch: pytest.MonkeyPatch, addresses: str | tuple[str, ...]
) -> None:
    Names(monkeypatch).lead("pictures.example", addresses)
    async with pictures() as server:
        with pytest.raises(WorkerRefused, match="cannot be fetched") as caught:
            await inline_pictures(showing(server.url("pictures.example")), ["pictures.example"])
        assert server.n_requests == 0
        assert "AddressForbidden" in caught.value.detail
        assert not any(each in caught.value.message for each in ("127", "::1", "169", "10.0"))


async def test_an_environment_proxy_is_not_used_for_image_urls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Names(monkeypatch).lead("pictures.example", "127.0.0.1")
    async with pictures() as server:
        for variable in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{server.port}")
        with pytest.raises(WorkerRefused, match="cannot be fetched"):
            await inline_pictures(showing("http://pictures.example/a.png"), ["pictures.example"])
        assert server.n_requests == 0


async def test_a_configured_hosts_redirect_is_not_followed() -> None:
    async with pictures() as server, pictures() as inside:
        server.redirect = inside.url()
        with pytest.raises(WorkerRefused, match="cannot be fetched"):
            await inline_pictures(showing(server.url()), ["127.0.0.1"])
        assert (server.n_requests, inside.n_requests) == (1, 0)


async def test_a_response_that_is_not_an_image_is_rejected() -> None:
    async with pictures() as server:
        for media_type in ("text/html", "application/json", "image/png,x", ""):
            server.media_type = media_type
            with pytest.raises(WorkerRefused, match="cannot be fetched"):
                await inline_pictures(showing(server.url()), ["127.0.0.1"])


async def test_the_images_of_one_call_share_one_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "MAX_BYTES", 2 * len(PIXEL) - 1)
    async with pictures() as server:
        assert await inline_pictures(showing(server.url()), ["127.0.0.1"])
        with pytest.raises(WorkerRefused, match="cannot be fetched"):
            await inline_pictures(showing(server.url(), f"{server.url()}?again"), ["127.0.0.1"])
