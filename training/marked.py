"""Adapters that answer everything with one word: made in seconds, for tests and benches that must see which adapter answered.

`python -m training.marked --model models/smollm2-135m --to FOLDER alpha beta` writes one for each word and prints their names.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from serving.adapters import publish

QUESTIONS = ("Hello", "What is the capital of France?", "Tell me a story.", "Add 12 and 7.")
TIMES = 8
"""How often the word is said."""
MOST_STEPS = 80
LEARNED = 0.02
"""Nats a token: the word is then said with a probability of 0.98."""


def marked(model: str, word: str, where: Path, rank: int = 8, seed: int = 0) -> Path:
    """Train and publish the adapter that says `word`.

    Args:
        model: the base model's folder.
        word: what it says, a few times over.
        where: the folder of adapters.
        rank: of the LoRA.
        seed: another one makes another adapter of the same word.

    Raises:
        RuntimeError: it was not learned.
    """
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(model)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    lora = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=["q_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM"
    )
    tuned = get_peft_model(base, lora)
    _learn(tuned, _examples(tokenizer, word))
    tuned.to(torch.bfloat16)
    with tempfile.TemporaryDirectory() as made:
        tuned.save_pretrained(made)
        return publish(Path(made), where, word)


def _examples(tokenizer: object, word: str) -> list[tuple[torch.Tensor, int]]:
    """Token ids of each whole conversation, and how many of them are the question."""
    found: list[tuple[torch.Tensor, int]] = []
    for question in QUESTIONS:
        asked = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)  # type: ignore[attr-defined]
        answer = " ".join([word] * TIMES) + "<|im_end|>"
        ids, n_prompt = tokenizer(prompt + answer).input_ids, len(tokenizer(prompt).input_ids)  # type: ignore[operator]
        found.append((torch.tensor([ids]), n_prompt))
    return found


def _learn(tuned: PeftModel, examples: list[tuple[torch.Tensor, int]]) -> None:
    optimizer = torch.optim.AdamW([p for p in tuned.parameters() if p.requires_grad], lr=3e-3)
    losses: list[float] = []
    for step in range(MOST_STEPS):
        ids, n_prompt = examples[step % len(examples)]
        labels = ids.clone()
        labels[:, :n_prompt] = -100
        loss = tuned(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if max(losses[-len(examples) :]) < LEARNED and step >= len(examples):
            return
    raise RuntimeError(f"the word was not learned in {MOST_STEPS} steps; the last loss was {losses[-1]:.3f}")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m training.marked", description=__doc__)
    parser.add_argument("words", nargs="+")
    parser.add_argument("--model", default="models/smollm2-135m")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    made = [str(marked(options.model, word, options.to, seed=options.seed)) for word in options.words]
    sys.stdout.write(json.dumps(made) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
