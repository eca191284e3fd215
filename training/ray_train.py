"""The same run on the machines of a Ray cluster: `python -m training.ray_train --config FILE --workers 2 --gpus`.

Ray Train (`TorchTrainer`) starts one process a device, with torch's process group between them; each runs `TrainingRun` as it is, for
the Hugging Face trainer finds the group by itself. Generation goes to `vllm` in `server` mode (`grpo.vllm` in the config), started with
`trl vllm-serve` on GPUs that are not among these. The run's folder must be on storage that all machines share.

Tried on CPUs with one worker and with a tiny model; not tried with GPUs by us.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from serving.settings import SettingsError
from training.config import load


def each_worker(given: dict[str, Any]) -> None:
    """One process's part of the run. Ray Train has set up torch's process group around it."""
    import os

    os.chdir(given["directory"])
    from training.config import parse
    from training.distributed import leads, processes
    from training.run import TrainingRun
    from training.run_dir import RunDir

    folder = RunDir(Path(given["out"]), leads=leads())
    report = TrainingRun(parse(given["config"]), folder, processes()).run()
    from ray import train

    after = {f"after/{source}": measured["right"] for source, measured in report["after"].items()}
    train.report(after | {"steps": report["steps"]})


def train_on_ray(config_file: str, out: Path, workers: int, *, gpus: bool, resume: bool) -> None:
    """Run a config on a Ray cluster; connects to the one that is up, or starts one here.

    Raises:
        SettingsError: the config, or the folder, cannot be used.
        TrainingFailedError: a process of it failed.
    """
    config = load(config_file)
    if workers > 1 and config.grpo.vllm is not None and config.grpo.vllm.mode == "server" and not gpus:
        raise SettingsError(
            "grpo.vllm server pushes weights over NCCL, which needs GPUs; pass --gpus, or leave grpo.vllm out."
        )
    from training.run import TrainingRun
    from training.run_dir import RunDir

    TrainingRun(config, RunDir.begin(out, config, resume=resume), workers).check()
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    trainer = TorchTrainer(
        each_worker,
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


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m training.ray_train", description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True)
    parser.add_argument(
        "--out", type=Path, help="a folder that all machines see; build/training/NAME where not given"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes, one a device")
    parser.add_argument("--gpus", action="store_true", help="give each of them a GPU")
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args(arguments)
    try:
        out = given.out or Path("build/training") / load(given.config).name
        train_on_ray(given.config, out, given.workers, gpus=given.gpus, resume=given.resume)
    except SettingsError as exc:
        Console(stderr=True).print(f"[red]{exc.message}[/red]")
        return 1
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped; the same command with --resume goes on.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
