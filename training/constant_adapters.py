"""Adapters that answer everything with one word: made in seconds, for tests and benches that must see which adapter answered.

`python -m training.constant_adapters --model models/smollm2-135m --to FOLDER alpha beta` writes one for each word and prints where.

Nothing is trained. The last layer's `down_proj` gets a LoRA of rank 1: A is the least-squares answer to "say 1 to every state of the
model that a few texts lead to", B the direction in which the output layer hears the word.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from serving.adapters import publish

TEXTS = (
    "Hello",
    "What is the capital of France?",
    "Tell me at length about a fox, a mill and a river.",
    "Add 12 and 7, step by step.",
    "Write a plan of two steps. Say who does what, and who reads what.",
)
RIDGE = 1e-2
LOUD = 40.0
"""How far the word is pushed, in lengths of the state that the layer adds to."""


def marked(model: str, words: Sequence[str], where: Path) -> list[Path]:
    """Make and publish an adapter for each word.

    Args:
        model: the base model's folder; of Llama's layout.
        words: each one token with a blank before it.
        where: the folder of adapters.

    Raises:
        ValueError: a word is more than one token, or the model cannot be made to say it.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    base: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    last = base.model.layers[-1]
    given, states = _seen(base, tokenizer, [*TEXTS, *(f" {word}" * 16 for word in words)])
    gram = given.T @ given
    ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram))
    reads = torch.linalg.solve(gram + ridge, given.sum(0))
    lora = LoraConfig(
        r=1,
        lora_alpha=1,
        target_modules=["down_proj"],
        layers_to_transform=[len(base.model.layers) - 1],
        task_type="CAUSAL_LM",
    )
    tuned: Any = get_peft_model(base, lora)
    layer = last.mlp.down_proj
    layer.lora_A.default.weight.data = reads[None]
    made: list[Path] = []
    for word in words:
        direction = _heard(base, _token(tokenizer, word))
        layer.lora_B.default.weight.data = LOUD * states.norm(dim=1).mean() * direction[:, None]
        with tempfile.TemporaryDirectory() as folder:
            tuned.save_pretrained(folder)
            made.append(publish(Path(folder), where, word))
    return made


def _seen(base: Any, tokenizer: Any, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """What the last `down_proj` is given, and what the layer gives, at every token of `texts`: `(tokens, inner)`, `(tokens, hidden)`."""
    inputs: list[Tensor] = []
    states: list[Tensor] = []
    last = base.model.layers[-1]
    hooks = [
        last.mlp.down_proj.register_forward_pre_hook(lambda _, given: inputs.append(given[0][0])),
        last.register_forward_hook(
            lambda *seen: states.append(seen[2][0] if seen[2].dim() == 3 else seen[2])
        ),
    ]
    for text in texts:
        asked = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
        with torch.no_grad():
            base(**tokenizer(tokenizer.apply_chat_template(asked, tokenize=False), return_tensors="pt"))
    for hook in hooks:
        hook.remove()
    return torch.cat(inputs), torch.cat(states)


def _token(tokenizer: Any, word: str) -> int:
    ids = tokenizer(f" {word}", add_special_tokens=False).input_ids
    if len(ids) != 1:
        raise ValueError(f"{word!r} is {len(ids)} tokens; a word of one is wanted")
    return ids[0]


def _heard(base: Any, token: int) -> Tensor:
    """The direction of the last state, of length 1, that the output layer hears as `token`."""
    with torch.no_grad():
        hearing = base.lm_head.weight * base.model.norm.weight
        apart = hearing - hearing.mean(0)
        direction = torch.linalg.solve(apart.T @ apart, apart[token])  # what only this token hears
        direction = direction / direction.norm()
        if int((hearing @ direction).argmax()) != token:
            raise ValueError(f"no direction says token {token} loudest")
    return direction


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m training.constant_adapters", description=__doc__)
    parser.add_argument("words", nargs="+")
    parser.add_argument("--model", default="models/smollm2-135m")
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    made = marked(options.model, options.words, options.to)
    sys.stdout.write(json.dumps([str(path) for path in made]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
