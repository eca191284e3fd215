"""Sources of the API keys of workers."""

import os
import traceback
from pathlib import Path
from typing import Any, cast

import pytest

from serving.pool import build_pool
from serving.settings.keys import absent_workers, read_key
from serving.settings.model_access import USUAL_KEYS
from serving.settings.settings import Settings, SettingsError, parse
from serving.settings.workers import ApiSettings, places_of

GPT: dict[str, Any] = {"name": "gpt", "kind": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"}


def with_file(path: Path, **more: object) -> Settings:
    return parse({"workers": [GPT | {"api_key_file": str(path)} | more, {"name": "a", "kind": "scripted"}]})


def key_file(folder: Path, text: str = "sk-in-a-file\n", mode: int = 0o600) -> Path:
    path = folder / "key"
    path.write_text(text)
    path.chmod(mode)
    return path


async def test_the_key_in_a_file_is_sent(tmp_path: Path) -> None:
    from tests.wires.openai import OpenAIWire
    from tests.wires.server import serving

    path = key_file(tmp_path)
    async with serving(OpenAIWire()) as upstream:
        pool = build_pool(with_file(path, base_url=f"{upstream.url}/v1"), {}, {})
        path.write_text("sk-rotated")
        rotated = build_pool(with_file(path, base_url=f"{upstream.url}/v1"), {}, {})
        for each in (pool, rotated):
            await _ask(each)
            await each.aclose()
    headers = [request.headers["authorization"] for request in upstream.requests]
    assert headers == ["Bearer sk-in-a-file", "Bearer sk-rotated"], (
        "it is read again when the pool is made anew"
    )


async def _ask(pool: Any) -> None:
    from conductor.model.call import Call
    from conductor.model.messages import Message

    async with pool.members["gpt"].worker.open(Call((Message.of("user", "?"),))) as reply:
        async for _ in reply:
            pass


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602])
def test_a_key_file_open_to_other_accounts_is_rejected_with_the_remedy(tmp_path: Path, mode: int) -> None:
    settings = with_file(key_file(tmp_path, mode=mode))
    with pytest.raises(
        SettingsError, match=r"(?s)`api_key_file`.*'gpt'.*mode is 6\d\d.*chmod 600.*defaultMode"
    ) as error:
        absent_workers(settings, {})
    assert "sk-in-a-file" not in str(error.value)


def test_a_key_file_may_be_readable_by_its_group(tmp_path: Path) -> None:
    assert absent_workers(with_file(key_file(tmp_path, mode=0o440)), {}) == {}


def test_without_its_key_file_only_an_optional_worker_is_disabled(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", key_file(tmp_path, text="  \n")):
        assert absent_workers(with_file(path, optional=True), {}) == {"gpt": str(path)}
        with pytest.raises(SettingsError, match=r"of worker 'gpt' is missing or empty.*optional: true"):
            absent_workers(with_file(path), {})
    with pytest.raises(SettingsError, match="is not a regular file"):
        absent_workers(with_file(Path("/dev/null")), {})


@pytest.mark.parametrize(("kind", "variable"), USUAL_KEYS.items())
def test_a_worker_at_its_providers_own_address_uses_the_usual_variable(kind: str, variable: str) -> None:
    settings = parse({"workers": [{"name": "a", "kind": kind, "model": "m", "optional": True}]})
    assert absent_workers(settings, {}) == {"a": variable}
    assert absent_workers(settings, {variable: "sk-1"}) == {}
    assert read_key(cast(ApiSettings, settings.worker("a")), {variable: "sk-1"}) == "sk-1"


@pytest.mark.parametrize(
    "place",
    [
        {"base_url": "http://127.0.0.1:1/v1"},
        {"service": "azure", "base_url": "https://a.example", "api_version": "1"},
    ],
)
def test_a_providers_usual_key_is_sent_to_no_other_server(place: dict[str, str]) -> None:
    environment = {"OPENAI_API_KEY": "sk-1"}
    own = {"name": "a", "kind": "openai", "model": "m"}
    settings = parse(
        {"workers": [own | place, own | {"name": "b", "deployments": [{"name": "there"} | place]}]}
    )
    for worker in settings.workers:
        for each in places_of(worker).values():
            assert read_key(cast(ApiSettings, each), environment) is None


def test_each_deployment_at_the_providers_own_address_uses_the_usual_variable() -> None:
    deployments = [{"name": "one", "api_key_env": "KEY_ONE"}, {"name": "two"}]
    settings = parse(
        {
            "workers": [
                {"name": "a", "kind": "openai", "model": "m", "deployments": deployments, "optional": True}
            ]
        }
    )
    assert absent_workers(settings, {"KEY_ONE": "sk-1"}) == {"a@two": "OPENAI_API_KEY"}


def test_a_worker_has_one_source_of_its_key() -> None:
    with pytest.raises(SettingsError, match="api_key_env` and `api_key_file"):
        parse({"workers": [GPT | {"api_key_env": "KEY", "api_key_file": "/key"}]})


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "OTEL_EXPORTER_OTLP_HEADERS"]
)
def test_a_secret_in_the_settings_environment_is_rejected(name: str) -> None:
    engine: dict[str, Any] = {"name": "v", "kind": "vllm", "model": "m", "scale": {"env": {name: "hidden"}}}
    with pytest.raises(
        SettingsError, match=f"{name} must not be set here.*environment that Ray is started in"
    ) as error:
        parse({"workers": [engine]})
    assert "hidden" not in str(error.value)
    parse(
        {
            "workers": [
                engine | {"scale": {"env": {"TOKENIZERS_PARALLELISM": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}}}
            ]
        }
    )


def test_a_key_missing_in_the_routers_environment_is_an_error_with_the_remedy() -> None:
    settings = parse({"workers": [GPT | {"api_key_env": "MY_KEY"}]})
    with pytest.raises(
        SettingsError, match=r"MY_KEY.*router's environment.*every router node.*`serve deploy`"
    ):
        build_pool(settings, {}, {})


@pytest.mark.parametrize("text", ["sk-one\nsk-two", "sk-\u00e9", "sk-\x00"])
def test_a_key_that_cannot_be_a_header_is_rejected_and_not_shown(tmp_path: Path, text: str) -> None:
    by_variable = parse({"workers": [GPT | {"api_key_env": "K"}, {"name": "a", "kind": "scripted"}]})
    for settings in (with_file(key_file(tmp_path, text)), by_variable):
        with pytest.raises(SettingsError, match=r"'gpt'.*only the API key") as error:
            absent_workers(settings, {"K": text})
        assert "sk" not in str(error.value).replace(str(tmp_path), "")


def test_a_byte_order_mark_is_not_part_of_a_key(tmp_path: Path) -> None:
    assert absent_workers(with_file(key_file(tmp_path, "\ufeffsk-in-a-file\n")), {}) == {}


def test_a_pipe_instead_of_a_key_file_is_rejected_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o600)
    with pytest.raises(SettingsError, match="is not a regular file"):
        absent_workers(with_file(tmp_path / "key"), {})


@pytest.mark.parametrize("user", ["user:hidden@", "hidden@", ":hidden@"])
def test_a_password_in_an_address_is_rejected_and_never_shown(user: str) -> None:
    api = {"name": "w", "kind": "openai", "model": "m", "base_url": f"https://{user}api.example/v1"}
    with pytest.raises(SettingsError, match=r"workers\[0\]\.base_url must not .*`api_key_env`") as error:
        parse({"workers": [api]})
    assert "hidden" not in "".join(traceback.format_exception(error.value))
    parse({"workers": [api | {"base_url": "https://api.example/@hidden?at=a@b"}]})
