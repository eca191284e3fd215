"""Comparison with other gateways: figures from artificial rounds, the upstream over HTTP, and the environments."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import yaml

from loadtest.bench import peers, proxies, steps
from loadtest.bench.proxies import ProxyRound, ProxySide
from loadtest.rig import RigError, echo_upstream
from loadtest.rig.client import CHAT, BenchClient
from loadtest.rig.processes import echo_upstream as upstream
from loadtest.rig.processes import make_environment, subprocess_server


def sides(ours: ProxySide, peer: ProxySide, upstream: ProxySide, ingress: ProxySide) -> ProxyRound:
    gateways = {"podium": ours, "litellm": peer, "metered": ours, "smg": peer}
    return gateways | {"upstream": upstream, "ingress": ingress}


def an_ingress(p50_ms: float, rps: float) -> ProxySide:
    return ProxySide(p50_ms, 0.0, rps, 0.0)


ROUNDS = [
    sides(
        ProxySide(3.0, 4.0, 500, 300),
        ProxySide(7.0, 7.0, 200, 60),
        ProxySide(1.0, 1.0, 5000, 3000),
        an_ingress(2.0, 1000),
    ),
    sides(
        ProxySide(2.0, 3.0, 600, 240),
        ProxySide(5.0, 5.0, 200, 60),
        ProxySide(1.0, 1.0, 5000, 3000),
        an_ingress(2.0, 800),
    ),
    sides(
        ProxySide(9.0, 9.0, 100, 50),
        ProxySide(17.0, 17.0, 40, 10),
        ProxySide(1.0, 1.0, 1000, 500),
        an_ingress(3.0, 200),
    ),
]
"""In the last round, the machine was busy with something else."""


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with upstream() as url:
        yield url


def test_gateways_are_compared_per_round_without_the_upstreams_time() -> None:
    got = {each.name: each.value for each in peers.litellm_figures(ROUNDS)}
    assert got["passthrough_rps_over_litellm"] == pytest.approx(2.5)
    assert got["streams_over_litellm"] == pytest.approx(5)
    assert got["added_p50_over_litellm"] == pytest.approx(1 / 3)
    assert (got["podium_added_p50_ms"], got["litellm_added_p50_ms"]) == (2, 6)
    assert got["added_first_token_over_litellm"] == pytest.approx(0.5)
    assert (got["podium_rps"], got["litellm_rps"], got["upstream_rps"]) == (500, 200, 5000)


def test_the_smg_comparison_includes_the_bare_ingress() -> None:
    got = {each.name: each.value for each in peers.smg_figures(ROUNDS)}
    assert got["metered_rps_over_ingress"] == pytest.approx(0.5)
    assert got["ingress_rps_over_smg"] == pytest.approx(5)
    assert (got["passthrough_rps_over_smg"], got["streams_over_smg"]) == (
        pytest.approx(2.5),
        pytest.approx(5),
    )
    assert (got["metered_rps"], got["smg_rps"], got["ingress_added_p50_ms"]) == (500, 200, 1)


def test_a_workflows_overhead_over_the_bare_ingress_is_reported_per_step() -> None:
    one, three = steps.figures([(2.0, 5.0, 11.0)])
    assert (one.value, three.value) == (3, 3)


def test_the_workflows_have_the_named_number_of_steps() -> None:
    workflows = yaml.safe_load((Path(steps.__file__).parent / "fast.yaml").read_text())["workflows"]
    assert [len(workflows[name]) for name in ("one-step", "three-steps")] == [1, 3]
    assert [step.get("access") for step in workflows["three-steps"]] == [None, [0], [1]]


async def test_the_official_sdk_can_parse_the_upstreams_answers(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        ask = {"model": "m", "messages": [{"role": "user", "content": "What is it?"}]}
        create: Any = client.chat.completions.create
        whole = await create(**ask)
        assert whole.choices[0].message.content == echo_upstream.TEXT
        chunks = [chunk async for chunk in await create(**ask, stream=True)]
    words = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert (len(words), "".join(filter(None, words))) == (echo_upstream.CHUNKS + 1, echo_upstream.TEXT)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == echo_upstream.CHUNKS


async def test_answers_are_checked_and_a_missing_word_is_an_error(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aiohttp.ClientSession() as session:
        client = BenchClient(session, url)
        await proxies.ask(client)
        await proxies.stream(client)
        monkeypatch.setattr(proxies, "TEXT", echo_upstream.TEXT.replace("word-7 ", ""))
        with pytest.raises(RigError, match="instead of"):
            await proxies.ask(client)
        with pytest.raises(RigError, match="instead of"):
            await proxies.stream(client)
        assert (await client.post(CHAT, proxies.STREAMED_BODY)).endswith(b"data: [DONE]\n\n")


async def test_a_server_that_exits_before_it_is_ready_is_reported_with_its_output() -> None:
    with pytest.raises(RigError, match=r"(?s)broken exited before it was ready.*no such luck"):
        async with subprocess_server("broken", ["sh", "-c", "echo no such luck; exit 3"], 9):
            pass


@pytest.mark.slow
def test_the_environment_is_recreated_only_when_its_lock_changes(tmp_path: Path) -> None:
    lock, venv = tmp_path / "peer.lock", tmp_path / "peer"
    lock.write_text("")
    make_environment(venv, "-r", str(lock))
    (venv / "kept").touch()
    make_environment(venv, "-r", str(lock))
    assert (venv / "kept").exists()
    lock.write_text("# another one\n")
    make_environment(venv, "-r", str(lock))
    assert not (venv / "kept").exists()


@pytest.mark.slow
def test_an_environment_that_cannot_be_created_is_an_error_and_is_not_reused(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(RigError, match=r"(?s)could not be created.*no-such"):
            make_environment(tmp_path / "peer", "no-such/file-1.0-py3-none-any.whl")


@pytest.mark.parametrize(
    ("peer", "package"), [(peers.LITELLM, "litellm==1.96.0"), (peers.SMG, "smg==1.13.0")]
)
def test_every_package_of_a_peer_is_pinned(peer: peers.Peer, package: str) -> None:
    assert f"{package} \\" in peer.lock.read_text().splitlines()
