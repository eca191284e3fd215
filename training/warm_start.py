"""The warm start: supervised learning of what a plan looks like, from the plans of `training.examples`.

A step's subtask mentions its worker's card, which teaches that a number stands for a card. The loss can count
the prompt's tokens too: a policy that never had to predict or restate a question does not read it, and then
learns only to collect the format's half point.
"""
# The types of transformers and datasets are partial.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from training.config import WarmStartConfig
from training.examples import Example
from training.plan_runner import Chat

IGNORED = -100


class Collator:
    """Examples to a batch, padded on the left. `labels` is (B, T, 2): token, and weight in thousandths.

    Where prompts do not count, logits are computed for the plans' positions alone, and T is theirs: over a
    vocabulary of 49,152 the prompts' logits take more memory than all the rest, and a third of the time.
    """

    def __init__(self, tokenizer: Any, prompt_weight: float) -> None:
        self._tokenizer, self._prompt_weight = tokenizer, prompt_weight

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        rows = [self._tokens(each["prompt"], each["plan"]) for each in examples]
        longest = max(len(ids) for ids, _ in rows)
        pad = self._tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (longest - len(row)) + row for row, _ in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row, _ in rows])
        weights = torch.tensor([[0] * (longest - len(w)) + w for _, w in rows])
        labels = torch.stack([ids.masked_fill(mask == 0, IGNORED), weights], dim=-1)
        batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        if self._prompt_weight:
            return batch
        # One more: the last token of a prompt predicts the plan's first.
        kept = 1 + max(sum(weight > 0 for weight in w) for _, w in rows)
        return batch | {"labels": labels[:, -kept:], "logits_to_keep": kept}

    def _tokens(self, prompt: Chat, plan: str) -> tuple[list[int], list[int]]:
        before = self._tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
        after = self._tokenizer(plan + self._tokenizer.eos_token, add_special_tokens=False)["input_ids"]
        weight = round(1000 * self._prompt_weight)
        return [*before, *after], [weight] * len(before) + [1000] * len(after)


def token_weighted_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """Cross-entropy of each next token, its mean weighted.

    Args:
        outputs: of the model, with `logits` (B, T, V).
        labels: (B, T, 2), see `Collator`.
        num_items_in_batch: of the Trainer; not needed.
    """
    logits, targets, weights = outputs.logits[:, :-1], labels[:, 1:, 0], labels[:, 1:, 1].float()
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return (losses * weights.flatten()).sum() / weights.sum()


def warm_start(
    model: PreTrainedModel,
    tokenizer: Any,
    examples: Sequence[Example],
    config: WarmStartConfig,
    arguments: dict[str, Any],
    callbacks: list[TrainerCallback],
    *,
    resume: Callable[[], str | None] = lambda: None,
) -> None:
    """Train `model` on the examples.

    Args:
        model: changed in place.
        tokenizer: of it.
        examples: what to learn, in any order.
        config: how.
        callbacks: of the Trainer.
        arguments: of `TrainingArguments`: folder, seed, device, checkpoints.
        resume: returns the checkpoint to resume from.
    """
    from datasets import Dataset

    rows = Dataset.from_list([{"prompt": each.prompt, "plan": each.plan} for each in examples])
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            per_device_train_batch_size=config.batch,
            num_train_epochs=config.epochs,
            learning_rate=config.learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=10,
            remove_unused_columns=False,
            logging_steps=10,
            # Not grouped by length: that puts similar questions in a row, and each row unlearned the one
            # before.
            dataloader_pin_memory=torch.cuda.is_available(),
            **arguments,
        ),
        train_dataset=rows,
        data_collator=Collator(tokenizer, config.prompt_weight),
        compute_loss_func=token_weighted_loss,
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=resume())
