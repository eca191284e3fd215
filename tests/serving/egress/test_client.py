"""Destinations of API workers' clients. No name, spelling, proxy or redirect may lead to a forbidden address."""

import asyncio
import re
from pathlib import Path

import httpx2
import pytest

import serving
from conductor.errors import WorkerRefused, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.messages import Image, Message, Text
from serving.egress.client import guard, open_client
from serving.egress.reach import ANYWHERE, REQUESTS, SETTINGS, AddressForbidden, Reach
from serving.egress.zones import Zone
from tests.resolver import Names
from tests.serving.workers.test_http import PROVIDERS, Provider, ask, failing
from tests.wires.server import serving as serving_wire

METADATA = "169.254.169.254"
SPELLINGS = [
    METADATA,
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.43518",
    "[::ffff:169.254.169.254]",
    "[fe80::1]",
]
SHOWN = Call((Message("user", (Text("What is it?"), Image("http://169.254.169.254/latest/a.png"))),))


@pytest.fixture(params=PROVIDERS.values(), ids=PROVIDERS.keys())
def provider(request: pytest.FixtureRequest) -> Provider:
    return request.param


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def refusal(provider: Provider, url: str) -> WorkerRefused:
    worker = provider.make(url)
    try:
        error = await asyncio.wait_for(failing(worker), 5)
    finally:
        await worker.aclose()
    assert type(error) is WorkerRefused, error.detail
    assert error.every_call
    assert "allow_link_local" in error.detail
    assert "allow_link_local" not in error.message
    return error


@pytest.mark.parametrize("host", SPELLINGS)
async def test_a_link_local_address_is_rejected_in_every_notation(provider: Provider, host: str) -> None:
    await refusal(provider, f"http://{host}:9")


@pytest.mark.parametrize("answer", [METADATA, "::ffff:169.254.169.254", ("127.0.0.1", METADATA)])
async def test_a_name_that_resolves_to_the_metadata_service_is_rejected(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, answer: str | tuple[str, ...]
) -> None:
    Names(monkeypatch).lead("api.example", answer)
    assert METADATA in (await refusal(provider, "http://api.example:9")).detail.replace(
        "::ffff:a9fe:a9fe", METADATA
    )


async def test_a_name_is_connected_at_its_checked_address(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name first resolves to an inside address, which the settings permit, and later to the metadata service."""
    names = Names(monkeypatch)
    names.lead("api.example", "127.0.0.1", METADATA)
    async with serving_wire(provider.wire) as server:
        worker = provider.make(server.url.replace("127.0.0.1", "api.example"))
        assert (await ask(worker))[0] == "It is four."
        await worker.aclose()
    assert (names.looked_up, len(server.requests)) == (["api.example"], 1)


async def test_an_environment_proxy_is_used_except_for_forbidden_addresses(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_wire(provider.wire) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        worker = provider.make("http://api.example")
        assert (await ask(worker))[0] == "It is four."
        await worker.aclose()
        assert proxy.requests[0].path.startswith("http://api.example/")
        await refusal(provider, "http://2852039166")
        assert len(proxy.requests) == 1


async def test_a_proxy_at_a_forbidden_address_is_not_used(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://{METADATA}:9")
    await refusal(provider, "http://api.example")


async def test_a_name_without_an_address_is_unavailable(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    Names(monkeypatch).lead("api.example", ())
    worker = provider.make("http://api.example")
    assert type(await failing(worker)) is WorkerUnavailable
    await worker.aclose()


async def test_the_next_address_of_a_name_is_tried(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    Names(monkeypatch).lead("api.example", ("127.0.0.2", "127.0.0.1"))
    async with serving_wire(provider.wire) as server:
        worker = provider.make(server.url.replace("127.0.0.1", "api.example"))
        assert (await ask(worker))[0] == "It is four."
        await worker.aclose()


async def test_a_hanging_look_up_blocks_no_other_and_times_out(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names(monkeypatch)
    names.hang("hangs.example")
    names.lead("api.example", "127.0.0.1")
    async with serving_wire(provider.wire) as server:
        hanging = [provider.make("http://hangs.example", connect_timeout_s=20) for _ in range(20)]
        brief = provider.make("http://hangs.example", connect_timeout_s=0.2)
        worker = provider.make(server.url.replace("127.0.0.1", "api.example"))
        try:
            waiting = [asyncio.create_task(failing(each)) for each in hanging]
            assert type(await asyncio.wait_for(failing(brief), 10)) is WorkerUnavailable
            assert (await asyncio.wait_for(ask(worker), 10))[0] == "It is four."
            assert names.looked_up == ["hangs.example", "api.example"]
            assert not any(task.done() for task in waiting)
        finally:
            names.released.set()
        assert {type(error) for error in await asyncio.gather(*waiting)} == {WorkerUnavailable}
        for each in (*hanging, brief, worker):
            await each.aclose()


async def test_a_server_at_an_internal_address_gets_no_image_urls(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    Names(monkeypatch).lead("api.example", "127.0.0.1")
    async with serving_wire(provider.wire) as server:
        for url in (server.url, server.url.replace("127.0.0.1", "api.example")):
            worker = provider.make(url)
            error = await failing(worker, SHOWN)
            assert (type(error), error.every_call) == (WorkerRefused, False)
            assert "Send the image as data:" in error.message
            assert "fetches_pictures" in error.detail
            await worker.aclose()
        assert server.requests == []
        allowed = provider.make(server.url, fetches_pictures=True)
        assert (await ask(allowed, SHOWN))[0] == "It is four."
        await allowed.aclose()


async def test_an_address_from_a_request_must_be_public(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(monkeypatch)
    for index, address in enumerate(("127.0.0.1", "10.0.0.1", METADATA, "::1", "fd00::1")):
        names.lead(f"{index}.example", address)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with open_client(REQUESTS, 2) as client:
        for host in ("localhost", "127.1", *SPELLINGS, *(f"{index}.example" for index in range(5))):
            with pytest.raises(AddressForbidden):
                await client.get(f"http://{host}/")


@pytest.mark.parametrize(
    ("reach", "refused"),
    [(REQUESTS, True), (SETTINGS, True), (ANYWHERE, False)],
    ids=["requests", "settings", "anywhere"],
)
def test_only_the_setting_permits_link_local_addresses(reach: Reach, refused: bool) -> None:
    assert (Zone.LINK_LOCAL not in reach.zones) == refused


async def test_a_transport_that_cannot_be_guarded_is_rejected() -> None:
    async with httpx2.AsyncClient(
        transport=httpx2.MockTransport(lambda request: httpx2.Response(200))
    ) as client:
        with pytest.raises(TypeError, match="MockTransport"):
            guard(client, SETTINGS)


def test_every_http_client_in_serving_is_guarded() -> None:
    makes = re.compile(
        r"\b(\w*(?:AsyncClient|HttpxClient|AioHttpClient|ClientSession)|urlopen|(?<!\.)requests\.(?:get|post|put|patch|delete|head|options|request|Session))\("
    )
    root = Path(serving.__file__).parent
    sources = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*.py")}
    makers = {name for name, source in sources.items() if makes.search(source)}
    assert makers == {"egress/client.py"} | {f"workers/{name}.py" for name in PROVIDERS}
    for name in PROVIDERS:
        source = sources[f"workers/{name}.py"]
        assert len(makes.findall(source)) == len(re.findall(r"guard\(\n?\s*\w+\.\w*Client\(", source)) == 1
