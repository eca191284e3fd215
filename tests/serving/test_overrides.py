"""`MODEL=` and `CONDUCTOR=`, which override a settings file at start without editing it."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from conductor.model.messages import Message
from serving import ROOT
from serving.pool import build_pool
from serving.settings.overrides import check_conductor_key, settings_to_serve, with_conductor, with_model
from serving.settings.patch import apply_patch
from serving.settings.settings import Settings, SettingsError, parse
from serving.settings.workers import VllmSettings
from tests.serving.api.served import Served, served
from tests.serving.api_pools import KEYS
from tests.serving.test_settings import FULL, OPENAI, VLLM, A, B, settings
from tests.serving.workers.subjects import Behaviour, ScriptedEngine
from tests.wires import strict
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, WireServer, serving

LOCAL, API = ROOT / "cluster/local.yaml", ROOT / "cluster/api.yaml"
VOTER: dict[str, Any] = {"name": "vote", "kind": "python", "factory": "evaluation.workers.majority:Majority"}
EVERY_KEY = dict.fromkeys(KEYS.values(), "a-key")


def engines(settings: Settings) -> list[str]:
    return [w.name for w in settings.workers if isinstance(w, VllmSettings) and not w.deployment]


def test_a_patch_keeps_the_overridden_model():
    full = with_model(settings(), "hub/other")
    assert apply_patch(full, {"limits": {"records": 3}}).worker("v") == full.worker("v")


def test_the_local_conductors_prompts_are_removed_with_it():
    local, other = (
        settings(conductor={"worker": "v"}, prompts={"conductor": "Plan."}),
        settings(prompts={"conductor": "Plan."}),
    )
    assert with_model(local, "hub/m").prompts.conductor is None
    assert with_model(other, "hub/m").prompts.conductor == "Plan."


def test_a_model_override_replaces_every_local_engines_model():
    own = with_model(settings(workers=[*FULL["workers"], VLLM | {"name": "w"}]), "hub/m")
    models = {w.name: w.model for w in own.workers if isinstance(w, VllmSettings)}
    assert (models["v"], models["w"]) == ("hub/m", "hub/m")
    assert models["v2"] == settings().worker("v2").model  # type: ignore[union-attr]
    assert own.worker("gpt") == settings().worker("gpt")


def test_a_model_override_without_a_local_engine_is_rejected() -> None:
    with pytest.raises(
        SettingsError, match=r"MODEL=hub/m .* no vllm worker with its own engine.* Omit MODEL"
    ):
        settings_to_serve(API, "hub/m")


# ------------------------------------------------------------------------------------------ CONDUCTOR


def test_a_providers_model_can_be_the_conductor_instead_of_the_local_one() -> None:
    before, led = settings_to_serve(LOCAL), settings_to_serve(LOCAL, conductor="gpt-5")
    assert (engines(before), engines(led)) == (["conductor", "writer"], ["writer"])
    assert "gpt-5" in led.pool
    assert not led.worker("gpt-5").optional, "it must not be replaced in silence where its key is missing"
    assert led.prompts.model_dump(exclude_none=True) == {}, "the default's are the adapter's"
    assert led.conductor is not None
    assert led.conductor.model_dump(exclude_unset=True) == {
        "worker": "gpt-5", "fallback": "gpt-5", "shuffle": False, "effort": "low",
    }  # fmt: skip
    assert (led.models, led.workflows, led.limits) == (before.models, before.workflows, before.limits)
    assert [w for w in before.workers if w.name not in ("conductor", "gpt-5")] == [
        w for w in led.workers if w.name != "gpt-5"
    ]


def test_any_api_model_can_be_the_conductor() -> None:
    led = settings_to_serve(API, conductor="claude")
    assert led.conductor is not None
    assert (led.conductor.worker, led.conductor.fallback) == ("claude", "gpt"), (
        "the file's fallback is no local model"
    )
    assert led.pool == settings_to_serve(API).pool


def test_naming_the_files_own_conductor_changes_only_that_its_key_is_required() -> None:
    assert settings_to_serve(LOCAL, conductor="conductor") == settings_to_serve(LOCAL)
    led, before = settings_to_serve(API, conductor="gpt-fast"), settings_to_serve(API)
    assert (led.conductor, led.prompts, led.worker("gpt-fast").optional) == (
        before.conductor,
        before.prompts,
        False,
    )
    workers = [worker.model_copy(update={"in_pool": worker.name != "gpt-fast"}) for worker in before.workers]
    outside = before.model_copy(update={"workers": tuple(workers)})
    assert with_conductor(outside, "gpt-fast").worker("gpt-fast").in_pool, "it joins, as any that is named"


def test_a_local_worker_can_be_the_conductor_with_another_model() -> None:
    led = settings_to_serve(LOCAL, "hub/m", "solver")
    assert led.conductor is not None
    assert (led.conductor.worker, led.conductor.effort, engines(led)) == ("solver", None, ["writer"])
    assert (led.worker("writer").model, led.prompts.steps) == ("hub/m", None)  # type: ignore[union-attr]


def test_with_a_providers_conductor_a_model_override_is_for_local_workers() -> None:
    led = settings_to_serve(LOCAL, "hub/m", "gpt-5")
    assert led.conductor is not None
    assert (led.conductor.worker, led.worker("writer").model) == ("gpt-5", "hub/m")  # type: ignore[union-attr]


def test_a_model_override_without_an_engine_is_rejected() -> None:
    only = parse(FULL | {"workers": [A, B, OPENAI, VLLM | {"in_pool": False}], "conductor": {"worker": "v"}})
    with pytest.raises(SettingsError, match="MODEL=hub/m"):
        with_model(with_conductor(only, "gpt"), "hub/m")


def test_a_replaced_conductors_engine_stays_if_others_use_it() -> None:
    hidden = VLLM | {"in_pool": False}
    for use in (
        {"workers": [*FULL["workers"][:3], hidden, {"name": "v2", "kind": "vllm", "deployment": "v"}]},
        {"workers": [A | {"fallbacks": ["v"]}, *FULL["workers"][1:3], hidden]},
        {"workers": [*FULL["workers"][:3], hidden], "workflows": {"w": [{"worker": "v"}]}},
    ):
        led = with_conductor(settings(conductor={"worker": "v"}, **use), "gpt")
        assert "v" in [worker.name for worker in led.workers]
        assert "v" not in led.pool
    alone = settings(conductor={"worker": "v"}, workers=[*FULL["workers"][:3], hidden])
    assert "v" not in [worker.name for worker in with_conductor(alone, "gpt").workers]


@pytest.mark.parametrize("file", ["local.yaml", "api.yaml", "gpu.yaml", "scripted.yaml"])
def test_every_worker_of_a_shipped_file_except_programs_can_be_the_conductor(file: str) -> None:
    path = ROOT / "cluster" / file
    before = settings_to_serve(path)
    for worker in before.workers:
        if worker.kind == "python":
            with pytest.raises(SettingsError, match="write no plans"):
                settings_to_serve(path, conductor=worker.name)
            continue
        led = settings_to_serve(path, conductor=worker.name)
        assert led.conductor is not None
        assert led.conductor.worker == worker.name
        assert worker.name in led.pool or led == before, "the file's own conductor stays as the file says"
        assert led.conductor.fallback in led.pool
        assert (led.models, led.workflows) == (before.models, before.workflows)
        missing = {w.name for w in before.workers} - {w.name for w in led.workers}
        assert missing <= {before.conductor.worker if before.conductor else ""}


def test_a_conductor_in_the_pool_stays_in_it_when_replaced() -> None:
    assert with_conductor(settings(), "gpt").pool == settings().pool


def test_changed_settings_can_be_patched_and_sent_to_a_replica() -> None:
    led = settings_to_serve(LOCAL, conductor="gpt-5")
    assert parse(led.model_dump(mode="json", exclude_unset=True)) == led
    patched = apply_patch(led, {"limits": {"records": 3}})
    assert (patched.conductor, patched.workers) == (led.conductor, led.workers)


@pytest.mark.parametrize(
    ("worker", "effort"),
    [
        ({"model": "gpt-5"}, "low"), ({"model": "gpt-5", "effort": "high"}, None), ({"model": "gpt-4.1"}, None),
        ({"model": "llama", "base_url": "http://127.0.0.1:9/v1"}, None),
        ({"model": "claude-sonnet-4-6", "kind": "anthropic"}, None), ({"model": "claude-sonnet-5-5", "kind": "anthropic"}, "low"),
    ],
)  # fmt: skip
def test_a_reasoning_conductor_plans_with_low_effort(worker: dict[str, Any], effort: str | None) -> None:
    led = with_conductor(settings(workers=[A, B, OPENAI | worker], models={"mini": {}}), "gpt")
    assert led.conductor is not None
    assert led.conductor.effort == effort


CANNOT: dict[str, tuple[dict[str, Any], str, str]] = {
    "nobody": ({}, "gpt-6", "'gpt-6' cannot be the conductor. No worker has this name"),
    "several": ({}, "gpt,a", "'gpt,a' cannot be the conductor. Name exactly one worker"),
    "several words": ({}, "gpt a", "'gpt a' cannot be the conductor. Name exactly one worker"),
    "a model's name": ({}, "mini", "'mini' cannot be the conductor. No worker has this name"),
    "the voter": ({}, "vote", r"'vote' cannot be the conductor, because workers of kind `python` usually write no plans"),
    "settings that serve no conductor": ({"models": {}}, "gpt", r"no `models`.*Add `models: \{podium-mini: \{\}\}`"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "name", "message"), CANNOT.values(), ids=CANNOT.keys())
def test_an_unsuitable_conductor_is_rejected_with_the_suitable_ones(
    changes: dict[str, Any], name: str, message: str
) -> None:
    full = settings(**{"workers": [*FULL["workers"], VOTER]} | changes)
    with pytest.raises(SettingsError, match=message) as refused:
        with_conductor(full, name)
    if "models" not in changes:
        assert (
            "These workers can be the conductor: a, b, gpt (API key: OPENAI_API_KEY), v, v2."
            in refused.value.message
        )


def test_a_conductor_without_its_key_is_an_error_and_not_replaced(
    tmp_path: Path,
) -> None:
    led = settings_to_serve(API, conductor="claude")
    with pytest.raises(
        SettingsError,
        match=r"'claude' cannot be the conductor, because its API key is not set\. Set ANTHROPIC_API_KEY\. These workers can be the conductor: gpt \(",
    ):
        check_conductor_key(led, {"OPENAI_API_KEY": "sk-1"})
    check_conductor_key(led, {"ANTHROPIC_API_KEY": "sk-1"})
    with pytest.raises(
        SettingsError, match=r"variable ANTHROPIC_API_KEY \(`api_key_env` of worker 'claude'\) is not set"
    ):
        build_pool(led, {"OPENAI_API_KEY": "sk-1"}, {})
    file = tmp_path / "key"
    with_key_file = parse(
        FULL | {"workers": [A, B, OPENAI | {"api_key_env": None, "api_key_file": str(file)}]}
    )
    with pytest.raises(SettingsError, match=f"Set {file}"):
        check_conductor_key(with_conductor(with_key_file, "gpt"), {})
    file.write_text("sk-1")
    file.chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        check_conductor_key(with_conductor(with_key_file, "gpt"), {})


def test_the_list_for_set_up_does_not_include_a_replaced_conductors_model() -> None:
    def needs(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if name not in KEYS.values()}
        command = [sys.executable, "-m", "cluster.local.needs", "cluster/local.yaml", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=clean | environment, capture_output=True, text=True, check=False
        )

    packages = needs("--conductor=gpt-5", OPENAI_API_KEY="sk-1")
    assert (packages.stdout, packages.stderr) == ('{"engine": true, "models": ["models/smollm2-135m"]}\n', "")
    for arguments, fault in (
        (["--conductor=gpt-5"], "Set OPENAI_API_KEY"),
        (["--conductor=gtp-5"], "No worker has this name"),
    ):
        refused = needs(*arguments)
        assert refused.returncode == 1
        assert fault in refused.stderr
        assert "writer, solver, critic, gpt-5 (API key: OPENAI_API_KEY)" in refused.stderr


def test_make_passes_the_conductor_to_set_up_and_the_server() -> None:
    for target in ("serve", "demo"):
        commands = commands_of(target, "CONDUCTOR=gpt-5", "SETTINGS=cluster/api.yaml")
        assert all(
            re.search("--settings 'cluster/api.yaml' .*--conductor 'gpt-5'", line) for line in commands[-2:]
        ), commands
    assert "--conductor 'gpt-5'" in "\n".join(commands_of("setup", "CONDUCTOR=gpt-5"))


def test_make_passes_any_name_as_one_argument(tmp_path: Path) -> None:
    name = f"a'b; touch {tmp_path}/made #"
    for variable, option in (("CONDUCTOR", "--conductor"), ("MODEL", "--model"), ("SETTINGS", "--settings")):
        words = shlex.split(commands_of("serve", f"{variable}={name}")[-1])
        assert words[words.index(option) + 1] == name


def commands_of(target: str, *variables: str) -> list[str]:
    """Return the commands that make would run. Clears make's own variables, in case make runs this test."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")
    }
    command = ["make", "-n", "--no-print-directory", target, *variables]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return process.stdout.splitlines()


@pytest.mark.parametrize("verb", ["serve", "demo"])
def test_the_conductor_option_may_be_used_only_once(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    from podium.cli import main

    with pytest.raises(SystemExit) as ended:
        main([verb, "--conductor", "gpt", "--conductor", "claude"])
    assert ended.value.code == 2
    assert "--conductor may be used only once." in capsys.readouterr().err


# ------------------------------------------------------------------------------------------ over sockets


@asynccontextmanager
async def led_by(name: str, path: Path = API) -> AsyncIterator[tuple[Served, WireServer]]:
    """Serve shipped settings with an OpenAI model as conductor, OpenAI on the loopback and no other key."""
    async with serving(OpenAIWire()) as upstream:
        upstream.respond = strict.openai()
        file = settings_to_serve(path)
        here = [
            {"name": w.name, "base_url": f"{upstream.url}/v1"} for w in file.workers if w.kind == "openai"
        ]
        led = with_conductor(apply_patch(file, {"workers": here}), name)
        local = {owner: ScriptedEngine(Behaviour()) for owner in engines(led)}
        async with served(led, {"OPENAI_API_KEY": "sk-1"}, local) as running:
            yield running, upstream
            await running.service.pool.aclose()


async def test_the_chosen_conductor_plans_with_the_built_in_prompt_and_its_own_pool() -> None:
    async with led_by("gpt-5", LOCAL) as (running, upstream):
        answer = await running.ok({"model": "podium-mini"})
        record = await running.newest()
    assert [plan["worker"] for plan in record["plans"]] == ["gpt-5"]
    assert record["fallback"] is None
    assert answer["choices"][0]["message"]["content"]
    body = upstream.requests[0].body
    assert body["model"] == "gpt-5"
    assert body["reasoning_effort"] == "low"
    assert body["max_completion_tokens"] == 1024 + 4096, "the plan's tokens and the thoughts'"
    system = next(message["content"] for message in body["messages"] if message["role"] != "user")
    assert "You lead a team of language models." in system
    assert '"needs"' not in system
    assert "GPT-5, a frontier reasoner" in system, "it may ask itself"
    assert "worker 0, the cheapest of your team" in system, "a local one costs nothing"
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["steps"]["items"]["properties"]["worker"]["enum"] == [*range(11)]


async def test_a_conductor_other_than_the_files_own_leads_the_api_models() -> None:
    async with led_by("gpt") as (running, upstream):
        await running.ok({"model": "podium-mini"})
        record = await running.newest()
    assert record["plans"][0]["worker"] == "gpt"
    assert upstream.requests[0].body["model"] == "gpt-6.1-sol"


async def test_a_greetings_plan_is_one_step_with_the_users_question() -> None:
    async with serving(OpenAIWire()) as upstream:
        plan = Answer(
            text='{"thinking": "Small talk.", "steps": [{"worker": 1, "subtask": "", "access": []}]}'
        )
        upstream.respond = lambda request: plan if "response_format" in request.body else Answer()
        data = {
            "conductor": {"worker": "v"},
            "workers": [VLLM | {"in_pool": False}, A, OPENAI | {"base_url": f"{upstream.url}/v1"}],
            "models": {"mini": {}},
        }
        async with served(with_conductor(parse(data), "gpt"), {"OPENAI_API_KEY": "sk-1"}) as running:
            events = await running.events(
                {"messages": [{"role": "user", "content": "hi"}]}, progress="reasoning"
            )
            planned = await running.ok({"messages": [{"role": "user", "content": "hi"}]}, "/v1/plans")
            await running.service.pool.aclose()
    thoughts = [
        c["delta"].get("reasoning_content") or "" for e in events if isinstance(e, dict) for c in e["choices"]
    ]
    assert "Step 1, gpt: answer the question\n" in "".join(thoughts)
    assert planned["plan"] == [{"worker": "gpt", "subtask": "", "access": []}]
    assert [m["content"] for m in upstream.requests[1].body["messages"]] == ["hi"]


async def test_the_prompt_reflects_the_requests_pool_and_steps() -> None:
    async with led_by("gpt") as (running, upstream):
        await running.ok({"model": "podium-ultra"}, max_steps=1, rounds=1, workers=["gpt-fast"])
    system = upstream.requests[0].body["messages"][0]["content"]
    assert "at most 1 step." in system
    assert "0: GPT-6 Luna." in system
    assert "1: " not in system.partition("The team:")[2]


def test_a_custom_prompt_stays_unless_the_conductor_was_local() -> None:
    own = settings(prompts={"conductor": "Plan."})
    assert with_conductor(own, "gpt").prompts.conductor == "Plan."
    assert (
        with_conductor(
            settings(prompts={"conductor": "Plan."}, conductor={"worker": "v"}), "gpt"
        ).prompts.conductor
        is None
    )


def test_a_conductor_by_name_gets_the_same_prompt_as_any_strong_one() -> None:
    texts = set[str]()
    for name in (None, "claude", "gemini"):
        team = build_pool(settings_to_serve(API, conductor=name), EVERY_KEY, {}).team
        assert team.conductor is not None
        messages = [Message.of("user", "hi")]
        texts.add(team.prompts.plan(team.conductor.layout, list(team.pool.values()), 5, messages)[0].text)
    assert len(texts) == 1
