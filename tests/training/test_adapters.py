import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.lora import adapters
from serving.pool import context_tokens_of
from serving.settings.settings import SettingsError, load
from tests.lazy import lazy
from tests.training.tiny_models import POOL, config
from training.adapters import WEIGHTS, main, publish, unservable
from training.run_dir import RunDir

torch = lazy("torch")
load_file = lazy("safetensors.torch:load_file")
save_file = lazy("safetensors.torch:save_file")
TrainingRun = lazy("training.run:TrainingRun")

FINE = {
    "peft_type": "LORA",
    "r": 16,
    "bias": "none",
    "modules_to_save": None,
    "target_modules": ["q_proj", "v_proj"],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"r": 17}, "rank 17 is not one of"),
        ({"bias": "all"}, "trains biases"),
        ({"modules_to_save": ["lm_head"]}, "replaces whole modules"),
        ({"use_dora": True}, "DoRA"),
        ({"peft_type": "IA3"}, "instead of LORA"),
        ({"target_modules": ["lm_head"]}, "embeddings or the output head"),
        ({"rank_pattern": {"q_proj": 8}}, "differs between modules"),
    ],
)
def test_an_adapter_that_vllm_cannot_serve_is_rejected_with_the_reason(change: dict[str, Any], message: str):
    assert unservable(FINE) == []
    assert any(message in why for why in unservable(FINE | change))


def run_at(path: Path, pool: str = POOL, *, changes: dict[str, Any] | None = None, **adapter: Any) -> Path:
    """Return a run's folder as training leaves it, with artificial weights."""
    lora = {"scratch": None, "path": "some/model", "lora": {"rank": 16}}
    run_config = config(path, pool, model=lora, **changes or {})
    folder = RunDir.begin(path / "run", run_config, resume=False)
    folder.final.mkdir()
    (folder.final / "adapter_config.json").write_text(json.dumps(FINE | adapter), "utf-8")
    save_file({"q.lora_A.weight": torch.full((16, 4), 0.1)}, folder.final / "adapter_model.safetensors")
    measured = {"right": 0.2, "sampled": 0.1, "single": 0.3, "composite": None, "parsed": 1.0, "questions": 9}
    folder.save(
        "report",
        {
            "minutes": 3,
            "before": {"skills": measured},
            "after": {"skills": measured | {"right": 0.9}},
            "provenance": {"skills": ["synthetic"]},
            "alone": {"skills": {"workers": {"adder": 0.4}, "oracle": 0.95}},
        },
    )
    return folder.path


def test_a_published_adapter_is_complete_and_named_after_its_weights(tmp_path: Path):
    adapter = publish(run_at(tmp_path), tmp_path / "adapters", base="HuggingFaceTB/SmolLM2-135M-Instruct")
    assert [each.name for each in (tmp_path / "adapters").iterdir()] == [adapter.name]
    adapters.verify(adapter, adapter.name)  # as the server does before it serves it
    assert adapter.name.startswith("conductor@")
    assert len(adapter.name) == len("conductor@") + 8
    assert {each.name for each in adapter.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "README.md",
        "config.yaml",
        "report.json",
        "versions.json",
        "pool.yaml",
        "inputs.json",
    }
    assert {tensor.dtype for tensor in load_file(adapter / "adapter_model.safetensors").values()} == {
        torch.bfloat16
    }
    card = (adapter / "README.md").read_text("utf-8")
    assert "SYNTHETIC" in card
    assert "| right | 0.200 | 0.900 |" in card
    assert "two skills" not in card
    assert "(adder): 0.400. At least one worker right: 0.950" in card
    assert "**Training**: sft, then grpo; details in config.yaml." in card
    assert yaml.safe_load(card.split("---")[1])["base_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_the_model_card_of_a_continued_adapter_names_its_start(tmp_path: Path):
    run = run_at(tmp_path)
    changed = yaml.safe_load((run / "config.yaml").read_text("utf-8"))
    changed["model"]["lora"]["start"] = "build/training/first/final"
    (run / "config.yaml").write_text(yaml.safe_dump(changed), "utf-8")
    card = (publish(run, tmp_path / "adapters") / "README.md").read_text("utf-8")
    assert "**Training**: starting from build/training/first/final, then sft, then grpo;" in card


def test_equal_weights_are_published_once_under_one_name(tmp_path: Path):
    run = run_at(tmp_path)
    assert publish(run, tmp_path / "adapters") == publish(run, tmp_path / "adapters")
    assert len(list((tmp_path / "adapters").iterdir())) == 1


def test_the_same_weights_at_another_scale_are_another_adapter(tmp_path: Path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    one = publish(run_at(tmp_path / "a"), tmp_path / "adapters")
    other = publish(run_at(tmp_path / "b", lora_alpha=99), tmp_path / "adapters")
    assert one != other
    assert json.loads((other / "adapter_config.json").read_text("utf-8"))["lora_alpha"] == 99


def test_an_adapter_that_vllm_cannot_serve_is_not_published(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"rank 3 is not one of.*DoRA"):
        publish(run_at(tmp_path, r=3, use_dora=True), tmp_path / "adapters")
    assert not (tmp_path / "adapters").exists()
    assert main([str(tmp_path / "run"), "--into", str(tmp_path / "adapters")]) == 1


PRIVATE = """
# the key of the third one is PRIVATE
conductor: {worker: conductor, format: steps, max_plan_tokens: 64, shuffle: true}
prompts: {conductor: "Plan.", steps: "", worker: "{number}: {card}"}
workers:
  - {name: conductor, kind: vllm, model: some/model, in_pool: false, engine: {max_model_len: 4096, hf_token: PRIVATE}}
  - {name: second, kind: vllm, deployment: conductor, card: does sums}
  - {name: paid, kind: openai, model: gpt-5, base_url: "https://models.example/v1?api-key=PRIVATE", api_key_env: PRIVATE,
     extra_body: {user: PRIVATE}, system_prompt: PRIVATE, card: knows much, price: {input_usd_per_mtok: 1.25, output_usd_per_mtok: 10}}
  - {name: cloud, kind: openai, model: mine, service: azure, base_url: "https://PRIVATE.example", api_version: "1"}
  - {name: own, kind: python, factory: "evaluation.synthetic.skills:Skill", options: {api_key: PRIVATE}, card: strings}
  - {name: vectors, kind: openai, model: embed, serves: [embeddings], api_key_file: PRIVATE}
models: {m: {max_steps: 2, workers: [paid, own]}}
store: {path: /srv/PRIVATE/podium.db}
"""


def test_private_settings_of_the_pool_are_not_published_but_prompts_are(tmp_path: Path):
    run = run_at(tmp_path, PRIVATE)
    assert "PRIVATE" in (run / "pool.yaml").read_text("utf-8")
    adapter = publish(run, tmp_path / "adapters")
    assert not [file.name for file in adapter.iterdir() if b"PRIVATE" in file.read_bytes()]
    before, after = load(run / "pool.yaml"), load(adapter / "pool.yaml")
    assert after.prompts == before.prompts
    assert after.conductor == before.conductor
    assert after.models == before.models
    assert after.pool == before.pool
    for one, other in zip(before.workers, after.workers, strict=True):
        assert (one.name, one.kind, one.card, one.price) == (other.name, other.kind, other.card, other.price)
        assert context_tokens_of(one, before) == context_tokens_of(other, after)


@pytest.mark.parametrize(
    ("changes", "tags"),
    [
        ({}, ["sft", "grpo"]),
        ({"grpo": {"steps": 0}}, ["sft"]),
        ({"grpo": {"steps": 0}, "expected_reward": {"examples": 10}}, ["sft", "expected-reward"]),
        ({"warm_start": None}, ["grpo"]),
    ],
)
def test_the_tags_are_those_of_the_training_stages(tmp_path: Path, changes: dict[str, Any], tags: list[str]):
    card = (publish(run_at(tmp_path, changes=changes), tmp_path / "adapters") / "README.md").read_text(
        "utf-8"
    )
    assert yaml.safe_load(card.split("---")[1])["tags"] == ["podium", "conductor", "lora", *tags]


def half(file: str) -> Callable[[Path], None]:
    """Return a function that cuts a file of the run in half."""

    def cut(run: Path) -> None:
        content = (run / file).read_bytes()
        (run / file).write_bytes(content[: len(content) // 2])

    return cut


def a_list(run: Path) -> None:
    (run / "final" / "adapter_config.json").write_text("[]", "utf-8")


@pytest.mark.parametrize(
    ("spoil", "into", "message"),
    [
        (
            half("report.json"),
            "adapters",
            r"run/report\.json is not valid JSON: .*\. Finish the run with podium train --resume",
        ),
        (
            half("final/adapter_config.json"),
            "adapters",
            r"adapter_config\.json is not valid JSON: .*\. Finish the run",
        ),
        (
            half("final/adapter_model.safetensors"),
            "adapters",
            r"adapter_model\.safetensors is corrupt: .* Finish",
        ),
        (
            a_list,
            "adapters",
            r"final/adapter_config\.json is not a JSON object\. Finish the run",
        ),
        (
            None,
            "pool.yaml",
            r"cannot be published in .*pool\.yaml: File exists\. Set --into to a writable folder",
        ),
        (
            None,
            "pool.yaml/adapters",
            r"cannot be published in .*pool\.yaml/adapters: Not a dir.*\. Set --into",
        ),
    ],
)
def test_an_unpublishable_run_is_reported_in_one_line(
    tmp_path: Path,
    spoil: Callable[[Path], None] | None,
    into: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
):
    run = run_at(tmp_path)
    if spoil:
        spoil(run)
    assert main([str(run), "--into", str(tmp_path / into)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert re.search(message, line), line


def test_only_the_path_of_the_published_adapter_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main([str(run_at(tmp_path)), "--into", str(tmp_path / "adapters")]) == 0
    (adapter,) = (tmp_path / "adapters").iterdir()
    assert capsys.readouterr().out == f"{adapter}\n"


def base_at(folder: Path) -> dict[str, Any]:
    """Save a base model to `folder`, as a pretrained model is. Return the `model` of a config that starts from it."""
    from training.models import model_for, tokenizer_for

    first = config(folder)
    texts = [
        text
        for each in TrainingRun(first, RunDir(folder)).examples()
        for text in (each.prompt[-1]["content"], each.plan)
    ]
    tokenizer = tokenizer_for(first.model, texts)
    model_for(first.model, tokenizer, 0).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    return {"scratch": None, "path": str(folder / "base"), "lora": {"rank": 8, "alpha": 16}}


@pytest.mark.slow
def test_a_trained_adapter_can_be_published_and_changes_the_base(tmp_path: Path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    run_config = config(tmp_path, model=base_at(tmp_path), warm_start={"examples": 160}, grpo={"steps": 1})
    TrainingRun(run_config, RunDir.begin(tmp_path / "run", run_config, resume=False)).run()
    published = publish(tmp_path / "run", tmp_path / "adapters")
    ids = torch.tensor([[5, 6, 7]])
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    before = base(ids).logits
    assert not torch.allclose(before, PeftModel.from_pretrained(base, published)(ids).logits, atol=1e-3)


@pytest.mark.slow
def test_a_run_with_a_kept_share_of_its_start_saves_the_mean_of_both(
    tmp_path: Path,
):
    model, stages = base_at(tmp_path), {"warm_start": {"examples": 160}, "grpo": {"steps": 0}}

    def run(name: str, *, resume: bool, **lora: Any) -> "dict[str, torch.Tensor]":
        run_config = config(tmp_path, model=model | {"lora": model["lora"] | lora}, **stages)
        TrainingRun(run_config, RunDir.begin(tmp_path / name, run_config, resume=resume)).run()
        return load_file(tmp_path / name / "final" / WEIGHTS)

    started = run("first", resume=False)
    goes_on = {"start": str(tmp_path / "first" / "final")}
    learned = run("all", resume=False, **goes_on)
    averaged = run("some", resume=False, **goes_on, kept=0.25)
    again = run("some", resume=True, **goes_on, kept=0.25)
    assert any(not torch.allclose(learned[name], weight, atol=1e-3) for name, weight in started.items())
    for name, weight in averaged.items():
        assert torch.allclose(weight, 0.75 * learned[name] + 0.25 * started[name], atol=1e-5), name
        assert torch.equal(weight, again[name]), name
