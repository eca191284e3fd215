"""LoRA adapters: names by content, validation, and complete downloads."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from serving.lora.adapters import AdapterError, digest, name_of, publish, verify
from serving.lora.compatibility import Tensor, check, tensors_of_model
from serving.lora.fetching import fetch
from tests.serving.adapter_files import CONFIG, adapter, lora, safetensors

BASE = {"model.layers.0.self_attn.q_proj.weight": Tensor("BF16", (8, 8))}


def test_a_digest_depends_only_on_the_content(tmp_path: Path) -> None:
    one = adapter(tmp_path / "one")
    same = adapter(tmp_path / "same")
    config = json.loads((one / "adapter_config.json").read_text())
    shuffled = dict(reversed(config.items())) | {"target_modules": config["target_modules"][::-1]}
    (same / "adapter_config.json").write_text(json.dumps(shuffled, indent=4))
    (same / "README.md").write_text("A card.")
    assert digest(one) == digest(same)
    others = [adapter(tmp_path / "weights", fill=1), adapter(tmp_path / "config", lora_alpha=8)]
    assert len({digest(folder) for folder in (one, *others)}) == 3


def test_the_digest_of_a_known_adapter_does_not_change(tmp_path: Path) -> None:
    assert digest(adapter(tmp_path / "a")) == "3661a37e", "published adapters would lose their names"


@pytest.mark.parametrize(
    "address", ["models/adapters/conductor@1a2b3c4d", "s3://b/p/conductor@1a2b3c4d", "/a/conductor@1a2b3c4d/",
                "s3://b/conductor@1a2b3c4d?endpoint_override=minio:9000&scheme=http"],
)  # fmt: skip
def test_the_adapters_name_is_the_end_of_its_address(address: str) -> None:
    assert name_of(address) == "conductor@1a2b3c4d"


@pytest.mark.parametrize("address", ["models/adapter", "conductor@1A2B3C4D", "conductor@1a2b", "s3://b/@1a2b3c4d", "a b@1a2b3c4d", ""])  # fmt: skip
def test_an_address_without_a_digest_is_rejected_with_the_remedy(address: str) -> None:
    with pytest.raises(AdapterError, match="podium adapter publish"):
        name_of(address)


def test_publishing_copies_the_adapter_once_under_its_digest(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "made")
    (folder / "card.md").write_text("A card.")
    published = publish(folder, tmp_path / "store", "conductor")
    assert published.name == f"conductor@{digest(folder)}"
    assert (published / "card.md").exists()
    before = (published / "adapter_config.json").stat().st_mtime_ns
    assert publish(folder, tmp_path / "store", "conductor") == published
    assert (published / "adapter_config.json").stat().st_mtime_ns == before
    assert [path.name for path in (tmp_path / "store").iterdir()] == [published.name], (
        "nothing half-made is left"
    )


def test_a_published_name_with_other_content_is_rejected(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "made")
    published = publish(folder, tmp_path / "store", "conductor")
    adapter(published, fill=7)
    for use in (lambda: verify(published, published.name), lambda: publish(folder, tmp_path / "store", "conductor"),
                lambda: fetch(str(published), tmp_path / "cache")):  # fmt: skip
        with pytest.raises(AdapterError, match="has the digest"):
            use()
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    ("fault", "config"),
    [
        ("DoRA", {"use_dora": True}),
        ("biases", {"bias": "all"}),
        ("whole modules", {"modules_to_save": ["lm_head"]}),
        ("peft_type must be 'LORA', but is 'IA3'", {"peft_type": "IA3"}),
        ("rank_pattern", {"rank_pattern": {"q_proj": 4}}),
        ("alpha_pattern", {"alpha_pattern": {"q_proj": 4}}),
        ("changed the base model", {"init_lora_weights": "pissa_niter_4"}),
        ("max_lora_rank", {"r": 32}),
        ("rank r must be a positive integer, but is None", {"r": None}),
        ("match the rank 4", {"r": 4}),
    ],
)
def test_an_adapter_that_vllm_cannot_serve_correctly_is_rejected(tmp_path: Path, fault: str, config: dict[str, Any]) -> None:  # fmt: skip
    with pytest.raises(AdapterError, match=fault):
        check(adapter(tmp_path / "a", **config), max_rank=16, base=BASE)


@pytest.mark.parametrize(
    ("fault", "shapes"),
    [
        ("a different model", lora(hidden=4)),
        ("a different model", lora(hidden=16)),
        ("a different model", lora() | lora(layer=1)),
        ("not a LoRA", {"base_model.model.lm_head.lora_A.weight": (2, 8)}),
        ("not a LoRA", {"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector": (8,)}),
    ],
)
def test_weights_for_another_model_are_rejected(tmp_path: Path, fault: str, shapes: Any) -> None:
    with pytest.raises(AdapterError, match=fault):
        check(adapter(tmp_path / "a", shapes), max_rank=16, base=BASE)


def test_a_fitting_adapter_is_accepted_even_for_quantised_or_unknown_models(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a")
    packed = {"model.layers.0.self_attn.q_proj.qweight": Tensor("I32", (1, 8))}
    for base in (BASE, packed, None):
        check(folder, max_rank=2, base=base)


def test_a_models_tensors_are_read_from_all_its_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"model-{name}.safetensors").write_bytes(safetensors({f"{name}.weight": (8, 4)}))
    assert tensors_of_model(tmp_path) == {name: Tensor("BF16", (8, 4)) for name in ("a.weight", "b.weight")}


@pytest.mark.parametrize("kept_bytes", [0, 5, 100, -1])
def test_a_truncated_file_is_rejected_whatever_its_name(tmp_path: Path, kept_bytes: int) -> None:
    folder = adapter(tmp_path / "made")
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept_bytes])
    with pytest.raises(AdapterError, match="truncated"):
        check(publish(folder, tmp_path, "conductor"), max_rank=16)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_fetched_adapter_is_an_independent_copy(tmp_path: Path, scheme: str) -> None:
    published = publish(adapter(tmp_path / "made"), tmp_path / "store", "conductor")
    with ThreadPoolExecutor(4) as replicas:
        every = list(replicas.map(lambda _: fetch(f"{scheme}{published}", tmp_path / "cache"), range(4)))
    assert set(every) == {tmp_path / "cache" / published.name}
    shutil.rmtree(published)
    assert fetch(f"{scheme}{published}", tmp_path / "cache") == every[0], "it is fetched once"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [published.name]


def test_a_damaged_cached_adapter_is_fetched_again(tmp_path: Path) -> None:
    published = publish(adapter(tmp_path / "made"), tmp_path / "store", "conductor")
    adapter(tmp_path / "cache" / published.name, fill=9)
    verify(fetch(str(published), tmp_path / "cache"), published.name)


@pytest.mark.parametrize(
    ("address", "why"),
    [("/nowhere/conductor@1a2b3c4d", "does not exist"), ("ftp://host/conductor@1a2b3c4d", "cannot be opened"), ("file:///nowhere/c@1a2b3c4d", "does not exist")],
)  # fmt: skip
def test_a_missing_address_is_an_error(tmp_path: Path, address: str, why: str) -> None:
    with pytest.raises(AdapterError, match=why):
        fetch(address, tmp_path / "cache")


def test_an_unwritable_cache_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    published = publish(adapter(tmp_path / "made"), tmp_path / "store", "conductor")
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(AdapterError, match="XDG_CACHE_HOME"):
        fetch(str(published), tmp_path / "file" / "cache")


def test_an_invalid_configuration_is_an_error(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a")
    for text, why in (("[]", "must contain a JSON object"), ("{", "not valid JSON")):
        (folder / "adapter_config.json").write_text(text)
        with pytest.raises(AdapterError, match=why):
            digest(folder)
    assert CONFIG["peft_type"] == "LORA"
