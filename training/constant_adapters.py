"""LoRA adapters that answer every question with one word, so that tests and benches see which adapter
answered.

`python -m training.constant_adapters --model models/smollm2-135m --to FOLDER alpha beta` writes one adapter
per word and prints their folders.

Nothing is trained. The last layer's `down_proj` gets a LoRA of rank 1. A is the least-squares fit of 1 to the
layer's inputs for a few texts. B is the direction that the output layer maps to the word.
"""
# The types of torch and transformers are partial.
# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer import Option

from podium.command_line.program import Program
from serving.lora.adapters import publish

TEXTS = (
    "Hello",
    "What is the capital of France?",
    "Tell me at length about a fox, a mill and a river.",
    "Add 12 and 7, step by step.",
    "Write a plan of two steps. Say who does what, and who reads what.",
)
RIDGE = 1e-2
SCALE = 40.0
"""Length of B, as a multiple of the mean length of the last layer's output."""


def make_adapters(model: str, words: Sequence[str], folder: Path) -> list[Path]:
    """Make and publish an adapter for each word, which is a single token after a space. Return their folders."""
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    base: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    texts = [*TEXTS, *(f" {word}" * 16 for word in words)]
    inputs, states = _activations(base, tokenizer, texts)
    gram = inputs.T @ inputs
    ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram))
    lora = LoraConfig(
        r=1,
        lora_alpha=1,
        target_modules=["down_proj"],
        layers_to_transform=[len(base.model.layers) - 1],
        task_type="CAUSAL_LM",
    )
    layer = base.model.layers[-1].mlp
    adapted: Any = get_peft_model(base, lora)
    layer.down_proj.lora_A.default.weight.data = torch.linalg.solve(gram + ridge, inputs.sum(0))[None]
    adapters: list[Path] = []
    for word in words:
        direction = _word_direction(base, _token(tokenizer, word))
        push: Tensor = SCALE * states.norm(dim=1).mean() * direction
        layer.down_proj.lora_B.default.weight.data = push[:, None]
        with tempfile.TemporaryDirectory() as path:
            adapted.save_pretrained(path)
            adapters.append(publish(Path(path), folder, word))
    return adapters


def _activations(base: Any, tokenizer: Any, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return inputs of the last `down_proj` and outputs of the last layer, a row per token."""
    inputs: list[Tensor] = []
    states: list[Tensor] = []
    layer = base.model.layers[-1]
    hooks = [
        layer.mlp.down_proj.register_forward_pre_hook(lambda _, args: inputs.append(args[0][0])),
        layer.register_forward_hook(
            lambda _, __, output: states.append(output[0] if output.dim() == 3 else output)
        ),
    ]
    for text in texts:
        chat = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
        with torch.no_grad():
            base(**tokenizer(tokenizer.apply_chat_template(chat, tokenize=False), return_tensors="pt"))
    for hook in hooks:
        hook.remove()
    return torch.cat(inputs), torch.cat(states)


def _token(tokenizer: Any, word: str) -> int:
    ids = tokenizer(f" {word}", add_special_tokens=False).input_ids
    if len(ids) != 1:
        raise ValueError(f"{word!r} has {len(ids)} tokens. Use a word that is a single token")
    return ids[0]


@torch.no_grad()
def _word_direction(base: Any, token: int) -> Tensor:
    """Return the unit vector that the output layer maps to `token`."""
    output = base.lm_head.weight * base.model.norm.weight
    centred = output - output.mean(0)
    # The solution maps to this token and to no other.
    direction: Tensor = torch.linalg.solve(centred.T @ centred, centred[token])
    direction = direction / direction.norm()
    if int((output @ direction).argmax()) != token:
        raise ValueError(f"no adapter of this form can make token {token} the most likely one")
    return direction


main = Program("python -m training.constant_adapters")


@main.command()
def write(words: list[str], to: Annotated[Path, Option()], model: str = "models/smollm2-135m") -> int:
    """Make adapters, and print their folders as JSON."""
    adapters = make_adapters(model, words, to)
    sys.stdout.write(json.dumps([str(path) for path in adapters]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
