"""The same run on the machines of a Ray cluster: `podium train --config FILE --ray-workers 2 --gpus`.

Ray Train (`TorchTrainer`) starts one process a device, with torch's process group between them; each runs
`TrainingRun`, and the Hugging Face trainer finds the group. Generation goes to `vllm` in `server` mode
(`grpo.vllm` in the config), started with `trl vllm-serve` on GPUs that are not among these. The run's folder
must be on storage that all machines share.

Tried on CPUs with one worker and a tiny model; not tried with GPUs by us.
"""

from pathlib import Path
from typing import Any

from serving.settings.settings import SettingsError
from training.config import Config


def train_worker(arguments: dict[str, Any]) -> None:
    """One process's part of the run. Ray Train has set up torch's process group around it."""
    import os

    os.chdir(arguments["directory"])
    from training.config import parse
    from training.distributed import is_main_process, world_size
    from training.run import TrainingRun
    from training.run_dir import RunDir

    run_dir = RunDir(Path(arguments["out"]), is_main=is_main_process())
    report = TrainingRun(parse(arguments["config"]), run_dir, world_size()).run()
    from ray import train

    after = {f"after/{source}": metrics["right"] for source, metrics in report["after"].items()}
    train.report(after | {"steps": report["steps"]})


def train_on_ray(config: Config, out: Path, workers: int, *, gpus: bool, resume: bool) -> None:
    """Run a config on the Ray cluster that is up, or on one started here.

    Raises:
        SettingsError: the config, or the folder, cannot be used.
        TrainingFailedError: one of its processes failed.
    """
    if workers > 1 and config.grpo.vllm is not None and config.grpo.vllm.mode == "server" and not gpus:
        raise SettingsError(
            "grpo.vllm server pushes weights over NCCL, which needs GPUs; "
            "pass --gpus, or leave grpo.vllm out."
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
