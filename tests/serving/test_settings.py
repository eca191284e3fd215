"""Validation, errors and immutability of settings."""

import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from conductor.errors import PodiumError
from serving.settings.keys import absent_workers, without_workers
from serving.settings.patch import apply_patch
from serving.settings.settings import Settings, SettingsError, load, parse
from serving.settings.workers import ScriptedSettings

ROOT = Path(__file__).resolve().parents[2]
A: dict[str, Any] = {"name": "a", "kind": "scripted"}
B: dict[str, Any] = {"name": "b", "kind": "scripted"}
OPENAI: dict[str, Any] = {"name": "gpt", "kind": "openai", "model": "gpt-5", "api_key_env": "OPENAI_API_KEY"}
VLLM: dict[str, Any] = {
    "name": "v",
    "kind": "vllm",
    "model": "models/x",
    "engine": {"max_model_len": 512},
    "scale": {"gpus": 1},
}
SHARED: dict[str, Any] = {"name": "v2", "kind": "vllm", "deployment": "v"}
FULL: dict[str, Any] = {
    "conductor": {"worker": "a", "fallback": "b"},
    "workers": [A, B, OPENAI | {"optional": True, "fallbacks": ["a"]}, VLLM, SHARED],
    "models": {"mini": {"max_steps": 2, "workers": ["a", "gpt"]}},
    "workflows": {"duo": [{"worker": "a"}, {"worker": "b", "access": [0]}], "solo": [{"worker": "gpt"}]},
}


def settings(**changes: Any) -> Settings:
    return parse(FULL | changes)


REFUSED: dict[str, tuple[Any, str]] = {
    "nothing": ({}, "workers"),
    "no mapping": ([], "settings"),
    "no workers": ({"workers": []}, "workers"),
    "an unknown key": ({"workers": [A], "wrokers": []}, "wrokers is not a known setting"),
    "an unknown key deep down": ({"workers": [A, B | {"delay": 1}]}, "workers[1].delay is not a known setting"),
    "an unknown key of a limit": ({"workers": [A], "limits": {"hearbeat_s": 1}}, "limits.hearbeat_s is not a known setting"),
    "an unknown key of a reply": ({"workers": [A | {"replies": [{"txt": "x"}]}]}, "txt is not a known setting"),
    "an unknown kind": ({"workers": [{"name": "a", "kind": "magic"}]}, "workers[0]"),
    "a key that is written out": ({"workers": [OPENAI | {"api_key": "sk-1"}]}, "workers[0].api_key is not a known setting"),
    "no name": ({"workers": [{"kind": "scripted"}]}, "workers[0].name"),
    "a name with a blank": ({"workers": [A | {"name": "a b"}]}, "workers[0].name"),
    "an empty name": ({"workers": [A | {"name": ""}]}, "workers[0].name"),
    "a name with a quote": ({"workers": [A | {"name": 'a"'}]}, "workers[0].name"),
    "a worker that falls back to itself": (
        {"workers": [A, B | {"fallbacks": ["a", "b"]}]},
        "workers[1].fallbacks must not name the worker 'b' itself.",
    ),
    "an API worker that falls back to itself": ({"workers": [OPENAI | {"fallbacks": ["gpt"]}]}, "workers[0].fallbacks must not name the worker 'gpt' itself"),
    "a fallback twice": (
        {"workers": [A | {"fallbacks": ["b", "c", "b"]}, B, A | {"name": "c"}]},
        "workers[0].fallbacks must not name 'b' more than once.",
    ),
    "a name twice": ({"workers": [A, B, A]}, "Two workers are named 'a'"),
    "a model called like a worker": ({"workers": [A], "conductor": {"worker": "a"}, "models": {"a": {}}}, "'a' is used twice"),
    "a workflow called like a worker": ({"workers": [A], "workflows": {"a": [{"worker": "a"}]}}, "'a' is used twice"),
    "a workflow called like a model": (
        {"workers": [A], "conductor": {"worker": "a"}, "models": {"m": {}}, "workflows": {"m": [{"worker": "a"}]}},
        "'m' is used twice",
    ),
    "an unknown conductor": ({"workers": [A], "conductor": {"worker": "z"}}, "conductor.worker names the worker 'z'"),
    "an unknown fallback": ({"workers": [A], "conductor": {"worker": "a", "fallback": "z"}}, "conductor.fallback names the worker 'z'"),
    "an unknown fallback of a worker": ({"workers": [A | {"fallbacks": ["z"]}]}, "worker 'a': fallbacks names the worker 'z'"),
    "a word that chooses no fallbacks": ({"workers": [A | {"fallbacks": "any"}]}, "workers[0].fallbacks must be a list of worker names, or `auto`."),
    "a fallback that is no name": ({"workers": [A | {"fallbacks": [1]}]}, "workers[0].fallbacks must be a list of worker names, or `auto`."),
    "the word in a list": ({"workers": [A | {"fallbacks": ["auto"]}]}, "worker 'a': fallbacks names the worker 'auto'"),
    "an unknown worker of a model": (
        {"workers": [A], "conductor": {"worker": "a"}, "models": {"m": {"workers": ["z"]}}}, "models.m.workers names the worker 'z'",
    ),
    "an unknown worker of a workflow": ({"workers": [A], "workflows": {"w": [{"worker": "z"}]}}, "workflows.w names the worker 'z'"),
    "models without a conductor": ({"workers": [A], "models": {"m": {}}}, "`models` require a `conductor`"),
    "a workflow without steps": ({"workers": [A], "workflows": {"w": []}}, "workflows.w must have at least one step"),
    "a workflow that reads forward": (
        {"workers": [A], "workflows": {"w": [{"worker": "a", "access": [0]}]}}, "workflows.w[0].access must contain only the numbers of earlier steps",
    ),
    "a workflow that reads from nothing": (
        {"workers": [A], "workflows": {"w": [{"worker": "a"}, {"worker": "a", "access": [-1]}]}}, "workflows.w[1].access must contain only",
    ),
    "an unknown deployment": ({"workers": [SHARED | {"deployment": "z"}]}, "worker 'v2': deployment names the worker 'z'"),
    "a deployment without an engine": ({"workers": [A, SHARED | {"deployment": "a"}]}, "deployment must name a vllm worker with its own engine, which 'a' is not"),
    "a deployment of a deployment": (
        {"workers": [VLLM, SHARED, SHARED | {"name": "v3", "deployment": "v2"}]}, "deployment must name a vllm worker with its own engine, which 'v2' is not",
    ),
    "a deployment of its own": ({"workers": [SHARED | {"deployment": "v2"}]}, "deployment must name a vllm worker with its own engine, which 'v2' is not"),
    "a deployment with an engine": ({"workers": [VLLM, SHARED | {"engine": {}}]}, "`deployment` and `engine` must not both be set"),
    "a deployment with a scale": ({"workers": [VLLM, SHARED | {"scale": {}}]}, "`deployment` and `scale` must not both be set"),
    "no local model": ({"workers": [{"name": "v", "kind": "vllm"}]}, "workers[0].model"),
    "fewer replicas at most than at least": (
        {"workers": [VLLM | {"scale": {"min_replicas": 3, "max_replicas": 2}}]}, "`max_replicas` must be at least `min_replicas`",
    ),
    "a negative price": ({"workers": [A | {"price": {"input_usd_per_mtok": -1, "output_usd_per_mtok": 1}}]}, "input_usd_per_mtok"),
    "half a price": ({"workers": [A | {"price": {"input_usd_per_mtok": 1}}]}, "price.output_usd_per_mtok"),
    "a model's worker outside the pool": (
        {"workers": [A, B | {"in_pool": False}], "conductor": {"worker": "a"}, "models": {"m": {"workers": ["b"]}}},
        "models.m.workers names the worker 'b', which plans must not use",
    ),
    "a fallback outside the pool": (
        {"workers": [A, B | {"in_pool": False}], "conductor": {"worker": "a", "fallback": "b"}},
        "conductor.fallback names the worker 'b', which plans must not use",
    ),
    "a worker called like the whole team": (
        {"workers": [A | {"name": "team"}], "conductor": {"worker": "team"}, "models": {"m": {"depth": 1}}},
        "The worker name 'team' is reserved",
    ),
    "no slots": ({"workers": [A | {"max_concurrency": 0}]}, "workers[0].max_concurrency"),
    "days without end, which null says": ({"workers": [A], "store": {"content_days": float("inf")}}, "store.content_days"),
    "no attempts": ({"workers": [A | {"retry": {"attempts": 0}}]}, "workers[0].retry.attempts"),
    "an unknown format": ({"workers": [A], "conductor": {"worker": "a", "format": "prose"}}, "conductor.format"),
    "a negative stickiness": ({"workers": [A], "conversation": {"stickiness": -1}}, "conversation.stickiness must be at least 0."),
    "a memory of two days": ({"workers": [A], "conversation": {"keep_s": 172_800}}, "conversation.keep_s must be at most 86400."),
    "a cache for a day": ({"workers": [A], "conversation": {"cache_lifetime": "1d"}}, "conversation.cache_lifetime must be 'auto', '5m' or '1h'."),
    "a baseline without a model": ({"workers": [A], "baseline": {}}, "baseline.model is missing."),
    "an empty baseline": ({"workers": [A], "baseline": ""}, "baseline.model must have at least 1 character"),
    "a reply that ends oddly": ({"workers": [A | {"replies": [{"finish": "soon"}]}]}, "finish"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_unusable_settings_are_rejected_with_their_place(data: Any, message: str):
    with pytest.raises(SettingsError) as caught:
        parse(data)
    assert message in caught.value.message
    assert caught.value.message.startswith("The settings cannot be used: ")
    assert isinstance(caught.value, PodiumError)


def test_a_baseline_is_a_name_or_a_name_with_a_price():
    assert parse({"workers": [A], "baseline": "gpt-5"}) == parse(
        {"workers": [A], "baseline": {"model": "gpt-5"}}
    )
    assert parse({"workers": [A]}).baseline is None


def test_fault_messages_have_no_empty_places_or_consequential_faults():
    with pytest.raises(SettingsError) as caught:
        parse({"workers": [A | {"x": 1}]})
    assert caught.value.message == "The settings cannot be used: workers[0].x is not a known setting."
    with pytest.raises(SettingsError) as caught:
        parse(None, "empty.yaml")
    assert ": :" not in caught.value.message


def test_several_faults_are_reported_together():
    with pytest.raises(SettingsError, match=r"(?s)workers\[0\]\.x is .*limits\.y is "):
        parse({"workers": [A | {"x": 1}], "limits": {"y": 2}})


def test_complete_settings_are_accepted_and_immutable():
    full = settings()
    assert full.pool == ["a", "b", "gpt", "v", "v2"]
    with pytest.raises(ValueError, match="frozen"):
        full.conductor = None  # type: ignore[misc]
    with pytest.raises(KeyError):
        full.worker("z")


def test_a_worker_outside_the_pool_is_still_a_worker():
    own = settings(workers=[A | {"in_pool": False}, *FULL["workers"][1:]], models={"mini": {}})
    assert "a" not in own.pool
    assert own.worker("a").name == "a"


def test_prices_are_exact_decimals():
    own = parse(
        {"workers": [A | {"price": {"input_usd_per_mtok": 1.25, "output_usd_per_mtok": "0.1"}}]}
    ).worker("a")
    assert own.price is not None
    assert (own.price.input_usd_per_mtok, own.price.output_usd_per_mtok) == (Decimal("1.25"), Decimal("0.1"))


def test_settings_round_trip():
    full = settings()
    assert parse(full.model_dump(mode="json", exclude_unset=True)) == full


def test_parsing_does_not_change_the_callers_data():
    import copy

    data = copy.deepcopy(FULL)
    parse(data)
    assert data == FULL
    assert "model" not in SHARED


def test_without_its_key_only_an_optional_worker_is_disabled():
    full = settings()
    assert absent_workers(full, {}) == {"gpt": "OPENAI_API_KEY"}
    assert absent_workers(full, {"OPENAI_API_KEY": ""}) == {"gpt": "OPENAI_API_KEY"}, "empty is not set"
    assert absent_workers(full, {"OPENAI_API_KEY": "sk-1"}) == {}
    with pytest.raises(
        SettingsError,
        match=r"variable OPENAI_API_KEY \(`api_key_env` of worker 'gpt'\) is not set.*optional: true",
    ):
        absent_workers(parse({"workers": [OPENAI]}), {})
    assert absent_workers(parse({"workers": [OPENAI | {"api_key_env": None}]}), {}) == {}, (
        "some servers want no key"
    )


def test_references_to_a_removed_worker_are_removed():
    rest = without_workers(settings(workers=[A | {"fallbacks": ["gpt", "b"]}, *FULL["workers"][1:]]), {"gpt"})
    assert rest.pool == ["a", "b", "v", "v2"]
    assert rest.worker("a").fallbacks == ("b",)
    assert rest.models["mini"].workers == ("a",)
    assert list(rest.workflows) == ["duo"]
    assert parse(rest.model_dump(mode="json", exclude_unset=True)) == rest


def test_a_removed_fallback_is_ignored_but_a_removed_conductor_is_an_error():
    assert without_workers(settings(), {"b"}).conductor.fallback is None  # type: ignore[union-attr]
    with pytest.raises(SettingsError, match="API key of the conductor 'a' is not set"):
        without_workers(settings(), {"a"})
    assert without_workers(settings(), set()) == settings()


def test_a_conductor_without_its_key_is_replaced_by_its_first_available_fallback():
    gpt = OPENAI | {"optional": True, "fallbacks": ["b", "a"]}
    led = parse({"workers": [A, B, gpt], "conductor": {"worker": "gpt", "fallback": "gpt"}})
    for absent, chosen in [({"gpt"}, "b"), ({"gpt", "b"}, "a"), (set[str](), "gpt")]:
        conductor = without_workers(led, absent).conductor
        assert conductor is not None
        assert conductor.worker == chosen


def test_if_no_worker_can_plan_all_useful_keys_are_named():
    keys = [OPENAI | {"name": f"w{n}", "api_key_env": f"KEY_{n}", "optional": True} for n in (1, 2)]
    led = parse({"workers": [A, keys[0] | {"fallbacks": ["w2"]}, keys[1]], "conductor": {"worker": "w1"}})
    with pytest.raises(SettingsError, match="Set one of these environment variables: KEY_1, KEY_2"):
        without_workers(led, {"w1", "w2"})


def test_accepted_parameters_can_be_configured_and_survive_a_patch():
    own = {"accepts": {"sampling": "never", "efforts": ["low"]}, "like": "gpt-5"}
    full = parse({"workers": [A, OPENAI | own]})
    assert apply_patch(full, {"limits": {"records": 3}}).worker("gpt") == full.worker("gpt")
    with pytest.raises(SettingsError, match=r"workers\[1\]\.accepts\.temperature is not a known setting"):
        parse({"workers": [A, OPENAI | {"accepts": {"temperature": False}}]})


def test_a_patch_changes_only_the_fields_that_it_names():
    full = settings()
    patch = {
        "workers": [
            {"name": "b", "card": "new", "price": {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}}
        ],
        "prompts": {"conductor": "Lead."},
        "limits": {"max_running": 5},
    }
    changed = apply_patch(full, patch)
    b = changed.worker("b")
    assert isinstance(b, ScriptedSettings)
    assert (b.card, b.price is not None and b.price.output_usd_per_mtok) == ("new", 2)
    assert (changed.prompts.conductor, changed.limits.max_running) == ("Lead.", 5)
    assert [w for w in changed.workers if w.name != "b"] == [w for w in full.workers if w.name != "b"]
    assert (changed.models, changed.workflows, changed.conductor) == (
        full.models,
        full.workflows,
        full.conductor,
    )
    assert apply_patch(full, {}) == full


def test_a_patch_can_add_an_api_worker_and_remove_one_from_the_pool():
    changed = apply_patch(
        settings(),
        {
            "workers": [{"name": "new", "kind": "openai", "model": "m"}, {"name": "b", "in_pool": False}],
            "conductor": {"worker": "a"},
        },
    )
    assert changed.pool == ["a", "gpt", "v", "v2", "new"]


ENGINE_CHANGES: dict[str, dict[str, Any]] = {
    "its model": {"name": "v", "model": "models/y"},
    "its engine": {"name": "v", "engine": {"max_model_len": 1024}},
    "its GPUs": {"name": "v", "scale": {"gpus": 2}},
    "whose it is": {"name": "v2", "deployment": None, "model": "models/y"},
    "its scale": {"name": "v", "scale": {"max_replicas": 4}},
    "a new one": {"name": "v3", "kind": "vllm", "model": "models/z"},
}


@pytest.mark.parametrize("worker", ENGINE_CHANGES.values(), ids=ENGINE_CHANGES.keys())
def test_a_patch_cannot_change_an_engine(worker: dict[str, Any]):
    with pytest.raises(SettingsError, match="deploy the settings file again"):
        apply_patch(settings(), {"workers": [worker]})


def test_a_patch_cannot_change_the_routers_scale_but_its_target():
    with pytest.raises(SettingsError, match="autoscaling_config"):
        apply_patch(settings(), {"router": {"max_replicas": 3}})
    assert apply_patch(settings(), {"router": {"target_calls": 50}}).router.target_calls == 50


def test_a_patch_can_add_a_worker_of_an_existing_engine():
    new = {"name": "v3", "kind": "vllm", "deployment": "v", "system_prompt": "You are brief."}
    assert apply_patch(settings(), {"workers": [new]}).pool[-1] == "v3"


def test_a_patch_of_a_local_workers_card_does_not_change_its_engine():
    assert (
        apply_patch(settings(), {"workers": [{"name": "v", "card": "fast", "temperature": 0.1}]})
        .worker("v")
        .card
        == "fast"
    )


def test_a_patch_can_add_and_remove_adapters_if_the_engine_supports_them():
    room = settings(workers=[*FULL["workers"][:3], VLLM | {"engine": {"enable_lora": True}}, SHARED])
    one = apply_patch(room, {"workers": [{"name": "v2", "adapter": "s3://b/conductor@1a2b3c4d"}]})
    assert (room.adapters_of("v"), one.adapters_of("v")) == ([], ["s3://b/conductor@1a2b3c4d"])
    began_with_one = settings(workers=[*FULL["workers"][:3], VLLM | {"adapter": "a/x@00000000"}, SHARED])
    other = apply_patch(began_with_one, {"workers": [{"name": "v", "adapter": "a/x@11111111"}]})
    none = apply_patch(began_with_one, {"workers": [{"name": "v", "adapter": None}]})
    assert (other.adapters_of("v"), none.adapters_of("v")) == (["a/x@11111111"], [])


@pytest.mark.parametrize("room", [{"engine": {"enable_lora": True}}, {"adapter": "a/x@00000000"}])
def test_an_engine_on_a_cpu_that_speculates_has_no_adapters(room: dict[str, Any]):
    guesses = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}
    on_gpu = VLLM | room | {"engine": room.get("engine", {}) | guesses}
    on_cpu = on_gpu | {"scale": {"gpus": 0}}
    without = VLLM | {"engine": guesses, "scale": {"gpus": 0}}

    def load(worker: dict[str, Any], sharing: dict[str, Any] = SHARED) -> Settings:
        return settings(workers=[*FULL["workers"][:3], worker, sharing])

    assert load(on_gpu)
    assert load(without)
    for worker, sharing in ((on_cpu, SHARED), (without, SHARED | {"adapter": "a/x@00000000"})):
        with pytest.raises(SettingsError, match=r"worker 'v': .*`speculative_config` and adapters"):
            load(worker, sharing)


@pytest.mark.parametrize("engine", [{}, {"enable_lora": False}])
def test_an_adapter_for_an_engine_without_adapter_support_is_rejected(
    engine: dict[str, Any],
):
    without_room = settings(workers=[*FULL["workers"][:3], VLLM | {"engine": engine}, SHARED])
    with pytest.raises(SettingsError, match="enable_lora: true"):
        apply_patch(without_room, {"workers": [{"name": "v2", "adapter": "a/x@00000000"}]})


@pytest.mark.parametrize(
    "patch",
    [
        {"nonsense": 1},
        {"workers": [{"name": "v", "adapter": "models/adapter"}]},
        {"workers": [{"name": "z"}]},
        {"workers": [{"card": "x"}]},
        {"workers": [{"name": ["a"]}]},
        {"workers": None},
        {"workers": ["b"]},
    ],
)
def test_an_invalid_patch_is_rejected(patch: dict[str, Any]):
    with pytest.raises(SettingsError, match="user_config"):
        apply_patch(settings(), patch)


def test_a_file_is_loaded_and_its_faults_are_reported(tmp_path: Path):
    good, bad, odd, latin = (tmp_path / f"{name}.yaml" for name in ("good", "bad", "odd", "latin"))
    latin.write_text("workers: [{name: v, kind: scripted, card: caf\xe9}]\n", encoding="latin-1")
    good.write_text("workers:\n  - {name: v, kind: vllm, model: m}\n")
    bad.write_text("workers: [")
    odd.write_text("workers: 7")
    assert load(good).pool == ["v"]
    for path, message in [
        (bad, "is not valid YAML"),
        (latin, "is not UTF-8"),
        (odd, f"{odd} cannot be used: line 1: workers must be a list"),
        (tmp_path / "none.yaml", "cannot be read: No such"),
    ]:
        with pytest.raises(SettingsError, match=message):
            load(path)


def test_reading_settings_again_is_fast():
    took = []
    for _ in range(5):
        began = time.thread_time()
        load(ROOT / "cluster/scripted.yaml")
        took.append(time.thread_time() - began)
    assert min(took) < 0.1


@pytest.mark.parametrize(
    ("old", "new", "section"),
    [("to_zero_delay_s", "downscale_to_zero_delay_s", "scale"), ("look_back_s", "look_back_period_s", "scale"), ("longest_wait_s", "max_wait_s", "retry")],
)  # fmt: skip
def test_a_renamed_setting_is_rejected_with_its_new_name(old: str, new: str, section: str) -> None:
    worker = {"name": "w", "kind": "vllm", "model": "m", section: {old: 5}}
    with pytest.raises(SettingsError, match=f"{section}.{old} was renamed to `{new}`"):
        parse({"workers": [worker]})
