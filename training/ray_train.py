"""Run a training on the machines of a Ray cluster: `podium train --config FILE --ray-workers 2 --gpus`.

Ray Train (`TorchTrainer`) starts one process per device and torch's process group between them. Each process
runs `TrainingRun`, and the Hugging Face trainer finds the group. Generation uses `vllm` in `server` mode
(`grpo.vllm` in the config), started by `trl vllm-serve` on other GPUs. The run's folder must be on storage
that all machines share.

Tested on CPUs with one worker and a tiny model; not tested on GPUs.
"""

from pathlib import Path
from typing import Any

from serving.settings.settings import SettingsError
from training.config import Config


def train_worker(arguments: dict[str, Any]) -> None:
    """Run one process of the training. Ray Train has set up torch's process group."""
    import os

    os.chdir(arguments["directory"])
    from training.config import parse
    from training.run import TrainingRun
    from training.run_dir import RunDir, is_main_process, world_size

    run_dir = RunDir(Path(arguments["out"]), is_main=is_main_process())
    report = TrainingRun(parse(arguments["config"]), run_dir, world_size()).run()
    from ray import train

    after = {f"after/{source}": metrics["right"] for source, metrics in report["after"].items()}
    train.report(after | {"steps": report["steps"]})


def train_on_ray(config: Config, out: Path, workers: int, *, gpus: bool, resume: bool) -> None:
    """Train on the running Ray cluster, or on one started on this machine."""
    if workers > 1 and config.grpo.vllm is not None and config.grpo.vllm.mode == "server" and not gpus:
        raise SettingsError(
            "grpo.vllm in server mode sends weights over NCCL, which needs GPUs. "
            "Pass --gpus, or remove grpo.vllm."
        )
    from training.run import TrainingRun
    from training.run_dir import RunDir

    TrainingRun(config, RunDir.begin(out, config, resume=resume), workers).check()
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    trainer = TorchTrainer(
        train_worker,
        train_loop_config={
            "config": config.model_dump(mode="json"),
            "out": str(out.resolve()),
            "directory": str(Path.cwd()),
        },
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpus),
        torch_config=TorchConfig(backend="nccl" if gpus else "gloo"),
        run_config=RunConfig(name=config.name, storage_path=str((out / "ray").resolve())),
    )
    trainer.fit()
