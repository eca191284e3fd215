"""The shipped settings load and are consistent, and vLLM accepts each engine argument in them."""

import re
from pathlib import Path
from typing import Any

import pytest

from conductor.model.messages import Message
from conductor.model.usage import FREE, Price
from conductor.plan.plan import Plan, Step
from conductor.run.plan_requests import parser
from serving import ROOT
from serving.pool import build_pool
from serving.settings.keys import absent_workers, without_workers
from serving.settings.settings import Settings, SettingsError, load
from serving.settings.workers import API_SETTINGS, ScriptedSettings, VllmSettings
from tests.serving.workers.subjects import Behaviour, ScriptedEngine

CLUSTER = Path(__file__).resolve().parents[2] / "cluster"
FILES = ("local.yaml", "gpu.yaml", "scripted.yaml")
OURS = {"chat_template_kwargs", "tool_call_parser"}
"""Keys under `engine` for the deployment, not for vLLM (serving/deployments/engine.py)."""


def engines(*files: str) -> list[tuple[str, VllmSettings]]:
    """Return each vllm worker with its own engine, with its file."""
    workers = [(file, worker) for file in files for worker in load(CLUSTER / file).workers]
    return [
        (file, worker)
        for file, worker in workers
        if isinstance(worker, VllmSettings) and not worker.deployment
    ]


ENGINES = [
    pytest.param(worker, id=f"{file}:{worker.name}") for file, worker in engines("local.yaml", "gpu.yaml")
]


@pytest.fixture(params=FILES)
def settings(request: pytest.FixtureRequest) -> Settings:
    return load(CLUSTER / request.param)


def keyless(settings: Settings) -> Settings:
    """Return the settings that a server uses if no key is set."""
    return without_workers(settings, set(absent_workers(settings, {})))


def test_every_file_serves_without_a_key(settings: Settings) -> None:
    remaining = keyless(settings)
    assert len(remaining.pool) >= 3
    assert remaining.workflows.keys() == settings.workflows.keys(), (
        "a workflow needs a worker that needs a key"
    )


def test_both_conductors_of_the_contract_exist(settings: Settings) -> None:
    assert settings.models.keys() >= {"podium-mini", "podium-ultra"}
    assert settings.conductor is not None
    assert not settings.worker(settings.conductor.worker).in_pool


def test_every_worker_in_the_pool_has_a_card(settings: Settings) -> None:
    for name in settings.pool:
        assert len(settings.worker(name).card) > 15, name


def test_cards_differ(settings: Settings) -> None:
    cards = [settings.worker(name).card for name in settings.pool]
    assert len(set(cards)) == len(cards)


def test_every_worker_has_a_price(settings: Settings) -> None:
    unpriced = [worker.name for worker in settings.workers if worker.price is None]
    assert all(isinstance(settings.worker(name), ScriptedSettings) for name in unpriced)


def test_workflows_are_plans_that_can_run(settings: Settings) -> None:
    for name, steps in settings.workflows.items():
        plan = [
            Step(s.worker, s.subtask, tuple(range(i)) if s.access == "all" else s.access)
            for i, s in enumerate(steps)
        ]
        workflow = Plan.of(plan, settings.pool, max_steps=5)
        assert workflow.reachable == set(range(len(plan))), f"{name}: a step that nobody reads"
        readers = [step for step in plan if step.access]
        assert all(step.subtask for step in readers), (
            f"{name}: without a subtask a step is not shown what it reads"
        )


@pytest.mark.parametrize("file", ["local.yaml", "gpu.yaml"])
def test_no_scripted_worker_answers_users(file: str) -> None:
    assert not any(isinstance(worker, ScriptedSettings) for worker in load(CLUSTER / file).workers)


@pytest.mark.parametrize("file", ["local.yaml", "gpu.yaml"])
def test_a_key_brings_its_provider_into_the_pool(file: str) -> None:
    settings = load(CLUSTER / file)
    providers = {
        "OPENAI_API_KEY": "gpt-5",
        "ANTHROPIC_API_KEY": "claude-sonnet-4",
        "GEMINI_API_KEY": "gemini-2.5-pro",
    }
    for key, name in providers.items():
        present = without_workers(settings, set(absent_workers(settings, {key: "a key"})))
        assert set(present.pool) - set(keyless(settings).pool) == {name}


def test_every_api_worker_has_a_fallback_even_with_only_its_own_key() -> None:
    for file in ("local.yaml", "gpu.yaml", "api.yaml"):
        settings = load(CLUSTER / file)
        ours = [worker for worker in settings.workers if isinstance(worker, API_SETTINGS)]
        assert ours
        for worker in ours:
            assert worker.api_key_env is not None
            alone = without_workers(settings, set(absent_workers(settings, {worker.api_key_env: "a key"})))
            assert alone.worker(worker.name).fallbacks, f"{file}: {worker.name}"


def test_one_provider_key_is_enough_and_an_error_names_the_missing_ones() -> None:
    settings = load(CLUSTER / "api.yaml")
    assert not any(isinstance(worker, VllmSettings) for worker in settings.workers)
    assert settings.models.keys() >= {"podium-mini", "podium-ultra"}
    conductors = {
        "OPENAI_API_KEY": "gpt-fast",
        "ANTHROPIC_API_KEY": "claude-fast",
        "GEMINI_API_KEY": "gemini-fast",
    }
    for key, name in conductors.items():
        alone = without_workers(settings, set(absent_workers(settings, {key: "a key"})))
        assert alone.conductor is not None
        assert alone.conductor.worker == name
        assert len(alone.pool) == 2
        assert name in alone.pool
    with pytest.raises(SettingsError, match="OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY"):
        keyless(settings)


def test_no_file_contains_a_key() -> None:
    files = list(CLUSTER.glob("*.yaml"))
    assert files
    for file in files:
        assert not re.search(r"\b(sk-|AIza|hf_)[A-Za-z0-9_-]{8}", file.read_text()), file


def test_the_embedded_default_fits_two_cores() -> None:
    settings = load(CLUSTER / "local.yaml")
    cpus = settings.router.num_cpus + sum(worker.scale.num_cpus for _, worker in engines("local.yaml"))
    assert cpus <= 2
    assert len(engines("local.yaml")) == 2
    assert {worker.scale.max_replicas for _, worker in engines("local.yaml")} == {1}


def test_the_largest_plan_of_the_default_fits_its_token_limit() -> None:
    """Five of the longest subtasks, at four characters per token, plus 30 tokens of JSON each."""
    conductor = load(CLUSTER / "local.yaml").conductor
    assert conductor is not None
    assert 5 * (conductor.subtask_chars / 4 + 30) <= conductor.max_plan_tokens


def test_the_scripted_conductor_plans_three_parallel_steps_and_a_final_one() -> None:
    settings = load(CLUSTER / "scripted.yaml")
    script = settings.worker("conductor")
    assert isinstance(script, ScriptedSettings)
    for reply in script.replies:
        reader = parser("steps", settings.pool, settings.models["podium-mini"].max_steps)
        steps = reader.feed(reply if isinstance(reply, str) else reply.text)
        assert [step.access for step in steps] == [(), (), (), (0, 1, 2)]
        assert reader.finish() == Plan(tuple(steps))
    assert "FAKE" in (CLUSTER / "scripted.yaml").read_text().splitlines()[0]


def test_local_models_have_a_price_of_zero() -> None:
    for _, worker in engines("local.yaml", "gpu.yaml"):
        assert worker.price is not None
        assert Price(worker.price.input_usd_per_mtok, worker.price.output_usd_per_mtok) == FREE


# vLLM's own parsing


@pytest.fixture(scope="session")
def vllm_cli() -> Any:
    """Return the parser of `vllm serve`. This takes 10 seconds or more."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser(exit_on_error=False))


def as_engine_args(model: str, engine: dict[str, Any]) -> Any:
    """Return `engine` as `vllm.AsyncEngineArgs`, without loading a model. Raise TypeError for an unknown key."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    return AsyncEngineArgs(model=model, **engine)


def as_command_line(engine: dict[str, Any]) -> list[str]:
    """Return `engine` as flags of `vllm serve`."""
    import json

    flags: list[str] = []
    for key, value in engine.items():
        flag = key.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", json.dumps(value) if isinstance(value, dict | list) else str(value)]
    return flags


def as_parsed(cli: Any, model: str, engine: dict[str, Any]) -> Any:
    """Parse `engine` with vLLM's command line, which checks types and choices. Reject unknown keys."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    try:
        parsed, unknown = cli.parse_known_args(["--model", model, *as_command_line(engine)])
    except SystemExit as exc:
        raise ValueError(f"vLLM's command line refuses {engine}") from exc
    if unknown:
        raise ValueError(f"vLLM's command line does not know {unknown}")
    return AsyncEngineArgs.from_cli_args(parsed)


@pytest.mark.parametrize("worker", ENGINES)
def test_vllm_accepts_every_engine_argument(worker: VllmSettings, vllm_cli: Any) -> None:
    engine = {key: value for key, value in worker.engine.items() if key not in OURS}
    arguments = as_engine_args(worker.model, engine)
    parsed = as_parsed(vllm_cli, worker.model, engine)
    for key, value in engine.items():
        assert getattr(arguments, key) == value
        assert getattr(parsed, key) == value, key
    assert arguments.tensor_parallel_size <= max(worker.scale.gpus, 1)


@pytest.mark.parametrize("worker", ENGINES)
def test_reasoning_parsers_exist_in_vllm(worker: VllmSettings) -> None:
    from vllm.reasoning import ReasoningParserManager

    name = worker.engine.get("reasoning_parser")
    assert name is None or ReasoningParserManager.get_reasoning_parser(name)


@pytest.mark.parametrize(
    "wrong",
    [{"max_modell_len": 4096}, {"max_num_seqs": "many"}, {"dtype": "bfloat17"}, {"kv_cache_dtype": "fp7"}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_engine_argument_is_an_error(wrong: dict[str, Any], vllm_cli: Any) -> None:
    import argparse

    with pytest.raises((TypeError, ValueError, argparse.ArgumentError)):
        as_parsed(vllm_cli, "some/model", wrong)
    if next(iter(wrong)) == "max_modell_len":
        with pytest.raises(TypeError):
            as_engine_args("some/model", wrong)


@pytest.mark.parametrize("worker", ENGINES)
def test_replica_environments_contain_only_variables_of_vllm(worker: VllmSettings) -> None:
    from vllm import envs

    ours = {name for name in worker.scale.env if name.startswith("VLLM_")}
    assert ours <= envs.environment_variables.keys()


def test_the_local_engine_has_a_valid_vllm_configuration() -> None:
    """vLLM combines model, cache and scheduler as it does before it loads weights."""
    for _, worker in engines("local.yaml"):
        folder = CLUSTER.parent / worker.model
        assert folder.is_dir(), "run `make setup`"
        config = as_engine_args(str(folder), worker.engine).create_engine_config()
        assert config.model_config.max_model_len == worker.engine["max_model_len"]
        assert config.cache_config.enable_prefix_caching
        assert config.model_config.enforce_eager


def test_an_unknown_setting_is_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text((CLUSTER / "gpu.yaml").read_text().replace("max_plan_tokens", "max_plan_token"))
    with pytest.raises(SettingsError, match=r"conductor\.max_plan_token is not a known setting"):
        load(broken)


def test_the_local_conductors_prompt_is_the_one_that_its_adapter_learned() -> None:
    """To a model of this size, another wording is another task."""
    settings = load(CLUSTER / "local.yaml")
    engines = {"conductor": ScriptedEngine(Behaviour()), "writer": ScriptedEngine(Behaviour())}
    engine = build_pool(settings, {}, engines).team
    assert engine.conductor is not None
    messages = [Message.of("user", "Why is the sky blue?")]
    system, question = engine.prompts.plan(engine.conductor.layout, list(engine.pool.values()), 2, messages)
    team = [each for each in settings.workers if each.in_pool and not each.optional]
    model = "costs nothing; context of 4,096 tokens"
    shown = [(each.card, model if each.kind == "vllm" else "costs nothing") for each in team]
    assert [each.kind for each in team] == ["vllm"] * 3 + ["python"] * 7
    assert system.text == (
        "You lead a team. Write a plan of at most 2 steps.\n\n"
        "One JSON object a line: what is needed, the number of who does it, the task (empty: the user's own words), "
        "the earlier steps it reads, such as\n"
        '{"needs": "gardening", "worker": 2, "subtask": "", "access": []}\n\n'
        "The team:\n"
        + "\n".join(f"{card}\n   ({facts}) = {number}" for number, (card, facts) in enumerate(shown))
    )
    assert question.text == "The user's question:\nWhy is the sky blue?"


@pytest.mark.parametrize(
    "path", [*(ROOT / "training" / "pools").glob("*.yaml"), *(ROOT / "adapters").glob("*/pool.yaml")], ids=str
)
def test_a_trained_conductors_pool_sets_how_workers_are_described(path: Path) -> None:
    """The built-in description of workers may change, but not the one that an adapter was trained on."""
    shown = load(path).prompts.worker
    assert shown is not None
    assert "{number}" in shown
    assert "{card}" in shown


def test_the_default_prompts_are_those_of_the_shipped_adapter() -> None:
    (shipped,) = (ROOT / "adapters").glob("*/shipped")
    assert load(ROOT / "cluster/local.yaml").prompts == load(shipped.parent / "pool.yaml").prompts
