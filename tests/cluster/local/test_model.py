"""Conversion of the default model, compared with that of transformers on a small model with the same quantised types."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import quants

from cluster.local import bfloat16, model
from tests.lazy import lazy

torch = lazy("torch")
load_file = lazy("safetensors.torch:load_file")
AutoModelForCausalLM = lazy("transformers:AutoModelForCausalLM")
AutoTokenizer = lazy("transformers:AutoTokenizer")
GgufConfig = lazy("transformers:GgufConfig")

WIDTH, HEADS, KV_HEADS, FFN, LAYERS = 128, 4, 2, 64, 2
BYTES = list(
    "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~Ġ"
)
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTES, "he", "Ġt", "Ġthe", "ll"]
MERGES = ["h e", "Ġ t", "Ġt he", "l l"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a Llama of random weights in the format of llama.cpp."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_add_space_prefix(False)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES)
    for add, number in (("bos", 1), ("eos", 2), ("unk", 0), ("pad", 2)):
        getattr(writer, f"add_{add}_token_id")(number)

    def add_tensor(name: str, *shape: int, kind: gguf.GGMLQuantizationType | None = None) -> None:
        values = random.normal(0, 0.1, shape).astype(np.float32)
        if kind is None:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)

    q4, kv = gguf.GGMLQuantizationType.Q4_1, WIDTH // HEADS * KV_HEADS
    add_tensor("token_embd.weight", len(TOKENS), WIDTH, kind=gguf.GGMLQuantizationType.Q8_0)
    add_tensor("output_norm.weight", WIDTH)
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            add_tensor(f"blk.{layer}.{name}.weight", WIDTH)
        shapes = {
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (kv, WIDTH),
            "attn_v": (kv, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_gate": (FFN, WIDTH),
            "ffn_up": (FFN, WIDTH),
            "ffn_down": (WIDTH, FFN),
        }
        for name, shape in shapes.items():
            add_tensor(f"blk.{layer}.{name}.weight", *shape, kind=q4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    model.convert(gguf.GGUFReader(source), folder)
    return folder


def test_converted_weights_are_identical_to_those_of_transformers(source: Path, converted: Path) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    ours = AutoModelForCausalLM.from_pretrained(converted)
    expected = theirs.state_dict()
    assert ours.dtype == torch.bfloat16
    assert ours.state_dict().keys() == expected.keys()
    assert [
        name for name, weight in ours.state_dict().items() if not torch.equal(weight, expected[name])
    ] == []
    ids = torch.arange(12).reshape(1, 12)
    torch.testing.assert_close(ours(input_ids=ids).logits, theirs(input_ids=ids).logits)
    for name in (
        "hidden_size",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "max_position_embeddings",
        "rope_parameters",
    ):
        assert getattr(ours.config, name) == getattr(theirs.config, name), name


def test_texts_have_the_same_tokens_as_in_transformers(source: Path, converted: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    ours = AutoTokenizer.from_pretrained(converted)
    text = "<|im_start|>tell the hello<|im_end|> all"
    assert ours(text).input_ids == theirs(text).input_ids
    assert ours.decode(ours(text).input_ids) == text


def test_the_converted_tokenizer_has_the_models_end_token_and_chat_template(converted: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert (tokenizer.eos_token, tokenizer.eos_token_id, tokenizer.pad_token_id) == ("<|im_end|>", 2, 0)
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text.endswith(
        "<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    )
    assert model.is_ready(converted)


def test_an_invalid_gguf_file_or_a_missing_tensor_is_an_error(source: Path, tmp_path: Path) -> None:
    (tmp_path / "other.gguf").write_bytes(b"GGML" + bytes(60))
    with pytest.raises(ValueError, match="magic"):
        gguf.GGUFReader(tmp_path / "other.gguf")
    cut = gguf.GGUFReader(source)
    cut.tensors = [each for each in cut.tensors if each.name != "blk.1.attn_q.weight"]
    with pytest.raises(KeyError, match="attn_q"):
        model.weights(cut)


def test_bfloat16_is_rounded_as_in_torch(tmp_path: Path) -> None:
    floats = torch.randn(1000) * torch.logspace(-30, 30, 1000)
    bits = bfloat16.bits_of(floats.numpy())
    bfloat16.save(tmp_path / "a.safetensors", {"a": bits.reshape(10, 100)})
    assert torch.equal(load_file(tmp_path / "a.safetensors")["a"].flatten(), floats.bfloat16())
    assert np.array_equal(bfloat16.load(tmp_path / "a.safetensors")["a"].flatten(), bits)
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes()[:30])
    with pytest.raises(ValueError):
        bfloat16.load(tmp_path / "cut.safetensors")


def test_a_model_without_weights_or_with_another_end_token_is_not_ready(converted: Path) -> None:
    assert model.is_ready(converted)
    config = converted / "generation_config.json"
    whole = config.read_text()
    config.write_text(json.dumps({"eos_token_id": 0}))
    assert not model.is_ready(converted)
    config.write_text(whole[:10])
    assert not model.is_ready(converted)
    config.write_text(whole)
    (converted / model.WEIGHTS).rename(converted / "away")
    assert not model.is_ready(converted)
