"""Supervised learning: looking up a worker, writing plans, and judging the choice of a worker.

A policy that never predicts a question does not read it, and only learns to write well-formed plans. The loss
can therefore include the tokens of the prompt.
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


def rows(examples: Sequence[Example], max_size: int) -> list[list[Example]]:
    """Group consecutive examples of the same team into rows of at most `max_size`."""
    grouped: list[list[Example]] = []
    for each in examples:
        if grouped and len(grouped[-1]) < max_size and grouped[-1][0].prompt[0] == each.prompt[0]:
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
    """Train `model` in place. Up to `per_row` consecutive examples of a team share a row. The type of
    `config` determines tokens and loss. `resume` returns the checkpoint to resume from, or None.
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
            # Not grouped by length: similar questions would follow each other, and each row would unlearn the
            # one before.
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
