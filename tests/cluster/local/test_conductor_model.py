from pathlib import Path

import pytest

from cluster.local import conductor_model, model
from tests.lazy import lazy

torch = lazy("torch")
peft = lazy("peft")
transformers = lazy("transformers")
save_file = lazy("safetensors.torch:save_file")


@pytest.fixture
def base_and_adapter(tmp_path: Path) -> tuple[Path, Path]:
    """Return a base model of a few thousand weights and an adapter for it, as PEFT writes them."""
    torch.manual_seed(0)
    base = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
    )  # fmt: skip
    base.save_pretrained(tmp_path / "base")
    for name in set(model.NEEDED_FILES) - {"config.json", "generation_config.json", "model.safetensors"}:
        (tmp_path / "base" / name).write_text("{}")
    adapted = peft.get_peft_model(
        base, peft.LoraConfig(r=8, lora_alpha=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    adapted.save_pretrained(tmp_path / "conductor@12345678")
    return tmp_path / "base", tmp_path / "conductor@12345678"


def test_the_merged_model_matches_the_base_with_its_adapter(
    base_and_adapter: tuple[Path, Path], tmp_path: Path
):
    base, adapter = base_and_adapter
    conductor_model.make(base, adapter, tmp_path / "merged")
    ids = torch.arange(20).reshape(2, 10)
    with torch.no_grad():
        merged = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "merged")(input_ids=ids).logits
        plain = transformers.LlamaForCausalLM.from_pretrained(base)
        without = plain(input_ids=ids).logits
        beside = peft.PeftModel.from_pretrained(plain, str(adapter))(input_ids=ids).logits
    torch.testing.assert_close(merged, beside, rtol=1e-4, atol=1e-4)
    assert (merged - without).abs().max() > 0.1


def test_the_model_is_merged_again_only_for_another_adapter(
    base_and_adapter: tuple[Path, Path], tmp_path: Path
):
    base, adapter = base_and_adapter
    folder = tmp_path / "merged"
    assert not conductor_model.is_ready(folder, adapter)
    conductor_model.make(base, adapter, folder)
    assert conductor_model.is_ready(folder, adapter)
    assert not conductor_model.is_ready(folder, tmp_path / "conductor@87654321")
    assert [path.name for path in tmp_path.glob(".merged-*")] == []


def test_an_adapter_of_another_model_is_rejected_and_leaves_no_files(
    base_and_adapter: tuple[Path, Path], tmp_path: Path
):
    base, adapter = base_and_adapter
    save_file(
        {
            "base_model.model.model.layers.7.mlp.up_proj.lora_A.weight": torch.ones(8, 16),
            "base_model.model.model.layers.7.mlp.up_proj.lora_B.weight": torch.ones(32, 8),
        },
        adapter / "adapter_model.safetensors",
    )
    with pytest.raises(model.ModelError, match=r"layers\.7\.mlp\.up_proj\.weight"):
        conductor_model.make(base, adapter, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    assert [path.name for path in tmp_path.glob(".merged-*")] == []
