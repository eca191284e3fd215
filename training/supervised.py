"""Learning from examples: to look up a worker, to write plans, and what each worker's answer is worth.

A policy that never had to predict or restate a question does not read it, and then learns only to collect the
format's half point; so the loss can count the prompt's tokens too.
"""
# The types of transformers and datasets are partial.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from training.branch_attention import attend_by_branches
from training.examples import Example
from training.packing import Collator, plan_loss
from training.supervised_config import ExpectedRewardConfig, LookUpConfig, StageConfig, WarmStartConfig


def rows(examples: Sequence[Example], most: int) -> list[list[Example]]:
    """Examples in rows: those of one team that follow each other together, at most so many."""
    grouped: list[list[Example]] = []
    for each in examples:
        if grouped and len(grouped[-1]) < most and grouped[-1][0].prompt[0] == each.prompt[0]:
            grouped[-1].append(each)
        else:
            grouped.append([each])
    return grouped


def learn(
    model: PreTrainedModel,
    tokenizer: Any,
    examples: Sequence[Example],
    config: StageConfig,
    arguments: dict[str, Any],
    callbacks: list[TrainerCallback],
    *,
    per_row: int = 1,
    resume: Callable[[], str | None] = lambda: None,
) -> None:
    """Train `model` on the examples.

    Args:
        model: changed in place.
        tokenizer: of it.
        examples: what to learn, in any order.
        config: how; its kind says which tokens count, and what for.
        arguments: of `TrainingArguments`: folder, seed, device, checkpoints.
        callbacks: of the Trainer.
        per_row: examples of one team that are learned from together.
        resume: returns the checkpoint to resume from.
    """
    from datasets import Dataset

    data = Dataset.from_list(
        [{"examples": [asdict(each) for each in row]} for row in rows(examples, per_row)]
    )
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
        train_dataset=data,
        data_collator=_collator(tokenizer, config),
        compute_loss_func=plan_loss,
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)
    with attend_by_branches(model):
        trainer.train(resume_from_checkpoint=resume())


def _collator(tokenizer: Any, config: StageConfig) -> Collator:
    match config:
        case LookUpConfig():
            return Collator(tokenizer, plan_weight=0.0)
        case WarmStartConfig():
            return Collator(tokenizer, config.prompt_weight, worker_weight=config.worker_weight)
        case ExpectedRewardConfig():
            return Collator(tokenizer, with_rewards=True)
