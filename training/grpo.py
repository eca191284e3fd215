"""GRPO with TRL (1.16), configured with public arguments and callbacks."""
# The types of TRL and datasets are partial.
# pyright: reportMissingTypeStubs=false, reportPrivateImportUsage=false, reportUnknownMemberType=false

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from serving.settings.settings import SettingsError
from training.config import Config
from training.plan_runner import PlanRunner
from training.team_question import TeamQuestion
from training.trl_reward import PlanReward

if TYPE_CHECKING:
    from training.recursion import TwoRounds


class SkipZeroGradient(TrainerCallback):
    """Callback that skips a step with zero gradient: unreachable workers, or equal rewards. Momentum and
    weight decay would change the weights.
    """

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        gradients = [p.grad for p in kwargs["model"].parameters() if p.grad is not None]
        if not any(bool(gradient.count_nonzero()) for gradient in gradients):
            kwargs["optimizer"].zero_grad(set_to_none=True)


def rows(runner: PlanRunner, questions: Sequence[TeamQuestion]) -> Dataset:
    """Return the data set: the server's prompt for each question, and the number of the question."""
    return Dataset.from_list(
        [{"prompt": runner.prompt(each), "row": row} for row, each in enumerate(questions)]
    )


def check(config: Config, processes: int) -> None:
    """Check that batch and second rounds suit this number of processes, or raise SettingsError."""
    grpo, micro = config.grpo, _micro_batch(config, processes)
    if grpo.recursion and processes > 1:
        raise SettingsError(
            f"grpo.recursion works with only one process, but there are {processes}. "
            "Train with one process, or remove grpo.recursion."
        )
    if micro == 0 or grpo.batch % (micro * processes):
        whole = "questions x completions" + (" x 2 rounds" if grpo.recursion else "")
        raise SettingsError(
            f"grpo: the {grpo.batch} completions of a step ({whole}) cannot be divided into {processes} x "
            f"micro_batch {micro or grpo.micro_batch}. {_remedy(grpo.batch, processes, grpo.micro_batch)}."
        )


def _micro_batch(config: Config, processes: int) -> int:
    """Return the completions per forward pass on a device, at most its part of a step."""
    return min(config.grpo.micro_batch, config.grpo.batch // processes)


def _remedy(batch: int, processes: int, max_size: int) -> str:
    if batch % processes:
        return f"Choose questions and completions so that their product is a multiple of {processes}, or change the number of processes"
    share = batch // processes
    best = max(size for size in range(1, min(max_size, share) + 1) if share % size == 0)
    return f"Set grpo.micro_batch to {best}"


def arguments(config: Config, folder: Path, processes: int = 1) -> GRPOConfig:
    check(config, processes)
    grpo, micro = config.grpo, _micro_batch(config, processes)
    cuda = torch.cuda.is_available()
    generation: dict[str, Any] = {"use_vllm": False}
    if grpo.vllm:
        generation = {
            "use_vllm": True,
            "vllm_mode": grpo.vllm.mode,
            "vllm_gpu_memory_utilization": grpo.vllm.memory_share,
        }
        if grpo.vllm.mode == "server":
            generation["vllm_server_base_url"] = grpo.vllm.url
    return GRPOConfig(
        output_dir=str(folder / "checkpoints"),
        seed=config.seed,
        max_steps=grpo.steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=grpo.batch // (micro * processes),
        num_generations=grpo.completions,
        max_completion_length=grpo.max_plan_tokens,
        temperature=grpo.temperature,
        learning_rate=grpo.learning_rate,
        lr_scheduler_type=grpo.schedule,
        warmup_steps=grpo.warmup_steps,
        weight_decay=grpo.weight_decay,
        max_grad_norm=grpo.max_grad_norm,
        beta=0.0,
        loss_type=grpo.loss,
        scale_rewards=grpo.scale_rewards,
        shuffle_dataset=False,
        bf16=config.model.mixed_precision,
        use_cpu=not cuda,
        gradient_checkpointing=grpo.gradient_checkpointing,
        logging_steps=1,
        save_strategy="steps",
        save_steps=config.checkpoint_every,
        save_total_limit=config.keep_checkpoints,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=cuda,
        log_completions=False,
        remove_unused_columns=False,
        **generation,
    )


def trainer(
    config: Config,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    reward: PlanReward,
    runner: PlanRunner,
    data: Dataset,
    folder: Path,
    callbacks: Sequence[TrainerCallback] = (),
    processes: int = 1,
) -> GRPOTrainer:
    rollout: Any = two_rounds(config, reward, runner, data) if config.grpo.recursion else None
    rewards: Any = [rollout.reward if rollout else reward]
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=rewards,
        args=arguments(config, folder, processes),
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[SkipZeroGradient(), *callbacks],
        rollout_func=rollout,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def two_rounds(config: Config, reward: PlanReward, runner: PlanRunner, data: Dataset) -> "TwoRounds":
    """Return a `rollout_func` that samples first plans, and second plans that revise them."""
    from training.recursion import TwoRounds, key

    grpo = config.grpo
    assert grpo.recursion is not None, "checked by the caller"
    rows: Any = data
    numbers = {key(row["prompt"]): row["row"] for row in rows}
    return TwoRounds(reward, runner, numbers, grpo.completions, grpo.recursion.discount)
