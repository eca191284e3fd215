"""Models in clouds, called over sockets with the credentials of the cloud SDKs."""

import json
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from cluster.local import uv
from conductor.model.call import Call, Sampling
from conductor.model.messages import Message
from conductor.model.operation import PromptCache, WireOptions
from serving.clients import build_client
from serving.pool import build_pool
from serving.settings.settings import SettingsError, parse
from tests.serving.api.served import Json, served
from tests.wires.anthropic import AnthropicWire
from tests.wires.gemini import GeminiWire
from tests.wires.openai import OpenAIWire
from tests.wires.server import Request, Wire, serving
from tests.wires.tokens import giving

ROOT = Path(__file__).parents[3]


async def ask(
    wire: Wire, worker: Json, environ: dict[str, str] | None = None, path: str = "", n: int = 1
) -> list[Request]:
    """Return the requests that a server of `wire` receives from the worker."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(wire))
        settings = {"workers": [{"name": "w", "base_url": server.url + path} | worker]}
        running = await stack.enter_async_context(served(settings, environ))
        stack.push_async_callback(running.service.pool.aclose)
        for _ in range(n):
            answer = await running.ok({"model": "w"})
            assert answer["choices"][0]["message"]["content"] == "It is four."
        return server.requests


def service_account(folder: Path, token_url: str) -> str:
    """Write the key file of a Google service account, and return its path."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    path = folder / "account.json"
    path.touch(0o600)
    path.write_text(json.dumps({
        "type": "service_account", "project_id": "p", "private_key_id": "1", "private_key": pem,
        "client_email": "podium@p.iam.gserviceaccount.com", "client_id": "1", "token_uri": token_url,
    }))  # fmt: skip
    return str(path)


AZURE = {
    "kind": "openai",
    "model": "gpt-5-of-ours",
    "like": "gpt-5",
    "service": "azure",
    "api_version": "2024-10-21",
}


async def test_azure_is_called_with_its_deployment_version_and_key_header() -> None:
    (request,) = await ask(OpenAIWire(), AZURE | {"api_key_env": "K"}, {"K": "key-of-azure"})
    assert request.path == "/openai/deployments/gpt-5-of-ours/chat/completions?api-version=2024-10-21"
    assert request.headers["api-key"] == "key-of-azure"
    assert "authorization" not in request.headers


def test_azure_gets_the_conversation_as_its_cache_key() -> None:
    worker = AZURE | {"name": "w", "base_url": "https://ours.example", "api_key_env": "K"}
    settings = parse({"workers": [worker]})
    client: Any = build_client(settings.workers[0], settings, {"K": "key-of-azure"}, {})
    options = WireOptions(prompt_cache=PromptCache(conversation="cv_1"))
    request = client._request(Call((Message.of("user", "Why?"),), Sampling(options=options)))
    assert request["prompt_cache_key"] == "cv_1"


async def test_azure_without_a_key_uses_the_machines_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with giving(
        access_token="token-of-entra",
        expires_on=str(int(time.time()) + 3600),
        token_type="Bearer",
        resource="r",
    ) as entra:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{entra.url}/token")
        monkeypatch.setenv("IDENTITY_HEADER", "x")
        requests = await ask(OpenAIWire(), AZURE, n=2)
        assert [request.headers["authorization"] for request in requests] == ["Bearer token-of-entra"] * 2
        assert all("api-key" not in request.headers for request in requests)
        assert len(entra.requests) == 1, "the token is kept until it expires"
        assert "cognitiveservices.azure.com" in entra.requests[0]


@pytest.mark.parametrize(
    ("wire", "worker", "path", "expected_path"),
    [
        (
            AnthropicWire(),
            {"kind": "anthropic", "model": "claude-sonnet-5"},
            "/v1",
            "/v1/projects/p/locations/europe-west4/publishers/anthropic/models/claude-sonnet-5:streamRawPredict",
        ),
        (
            GeminiWire(),
            {"kind": "gemini", "model": "gemini-3.8-flash"},
            "",
            "/v1beta1/projects/p/locations/europe-west4/publishers/google/models/gemini-3.8-flash:streamGenerateContent?alt=sse",
        ),
    ],
    ids=["anthropic", "gemini"],
)
async def test_vertex_is_called_in_its_region_with_the_service_accounts_token(
    tmp_path: Path, wire: Wire, worker: Json, path: str, expected_path: str
) -> None:
    async with giving(access_token="token-of-google", expires_in=3600, token_type="Bearer") as google:
        place = {
            "service": "vertex",
            "region": "europe-west4",
            "project": "p",
            "credentials_file": service_account(tmp_path, f"{google.url}/token"),
        }
        requests = await ask(wire, worker | place, path=path, n=2)
        assert [request.path for request in requests] == [expected_path] * 2
        assert [request.headers["authorization"] for request in requests] == ["Bearer token-of-google"] * 2
        assert len(google.requests) == 1, "the token is kept until it expires"


def test_unreadable_or_unprotected_credentials_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "account.json"
    place = {"service": "vertex", "region": "r", "project": "p", "credentials_file": str(path)}
    settings = parse({"workers": [{"name": "w", "kind": "gemini", "model": "m"} | place]})
    for content, mode, fault in [
        (None, 0, "No such file"),
        ("{}", 0o644, "chmod 600"),
        ("{}", 0o600, "not the key file of a service account"),
    ]:
        if content is not None:
            path.write_text(content)
            path.chmod(mode)
        with pytest.raises(SettingsError, match=fault):
            build_pool(settings, {}, {})


BEDROCK: Json = {
    "name": "w",
    "kind": "anthropic",
    "model": "eu.anthropic.claude-sonnet-5-v1:0",
    "like": "claude-sonnet-5",
    "service": "bedrock",
    "region": "eu-central-1",
}


def test_a_missing_cloud_library_is_an_error_with_the_install_command() -> None:
    with pytest.raises(SettingsError, match=r"pip install 'podium\[bedrock\]'"):
        build_pool(parse({"workers": [BEDROCK]}), {}, {})


ASK_BEDROCK = """
import asyncio, json
from tests.serving.api.served import served
from tests.serving.workers.test_clouds import BEDROCK, ask
from tests.wires.bedrock import BedrockWire
from tests.wires.server import Answer, serving

async def send_request(worker):
    (request,) = await ask(BedrockWire(), BEDROCK | worker, {"K": "key-of-bedrock"})
    return request.path, request.headers, request.body

async def read_answer():
    frame = BedrockWire().events(Answer())[0]
    async with serving(BedrockWire(), Answer(instead=(frame[:-1] + b"?",))) as server:
        settings = {"workers": [{"name": "w", "base_url": server.url, "retry": {"attempts": 1}} | BEDROCK]}
        async with served(settings, {}) as running:
            answer = await running.post({"model": "w"})
            await running.service.pool.aclose()
            return answer.status_code, answer.json()["error"]["code"]

async def main():
    print(json.dumps([await send_request({}), await send_request({"api_key_env": "K"}), await read_answer()]))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def boto3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with boto3, which conflicts with other test dependencies (see pyproject.toml)."""
    folder = tmp_path_factory.mktemp("boto3")
    ended = uv.pip("install", "--target", str(folder), "boto3==1.44.5")
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="module")
def bedrock(boto3: Path) -> Any:
    """Return two requests to Bedrock, one signed and one with a key, and the client's view of a broken frame. Runs
    one process for all three.
    """
    environ = {
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    environ |= {"PYTHONPATH": f"{boto3}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(boto3)}
    ended = subprocess.run(
        [sys.executable, "-c", ASK_BEDROCK], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_bedrock_is_called_in_its_region_with_a_signature_or_key(bedrock: Any) -> None:
    (path, headers, body), (_, keyed, _), _ = bedrock
    assert path == "/model/eu.anthropic.claude-sonnet-5-v1:0/invoke-with-response-stream"
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIAEXAMPLE/")
    assert "/eu-central-1/bedrock/aws4_request" in headers["authorization"]
    assert ("anthropic_version" in body, "model" in body) == (True, False)
    assert keyed["authorization"] == "Bearer key-of-bedrock"


def test_an_invalid_frame_of_bedrock_is_a_worker_error(bedrock: Any) -> None:
    assert bedrock[-1] == [502, "worker_unavailable"]
