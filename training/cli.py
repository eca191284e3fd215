"""`podium train --config FILE`: train a conductor, here or on a Ray cluster.

Exit codes: 0: done; 1: invalid config, or a file cannot be written; 130: stopped, can be resumed.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from program.process import restore_interrupts
from serving.settings.settings import SettingsError
from training.config import Config, ModelConfig, load, parse
from training.report import lines
from training.run_dir import RunDir, is_main_process, world_size, write_error

OUT = Path("build/training")


def main(argv: Sequence[str] | None = None) -> int:
    """Train a conductor, and return the exit code."""
    options = parser().parse_args(argv)
    console = Console(stderr=True)
    restore_interrupts()
    try:
        config = load(options.config)
        if options.seed is not None:
            config = parse(config.model_dump(mode="json") | {"seed": options.seed}, "--seed")
        out = options.out or OUT / config.name
        if options.ray_workers:
            from training.ray_train import train_on_ray

            train_on_ray(config, out, options.ray_workers, gpus=options.gpus, resume=options.resume)
            return 0
        return train(config, out, console, resume=options.resume)
    except SettingsError as exc:
        console.print(f"[red]{exc.message}[/red]", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("Stopped. Run the same command with --resume to continue.")
        return 130


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    parser = argparse.ArgumentParser(
        prog="podium train",
        description="Train a conductor by reinforcement learning.",
        epilog="example: podium train --config training/configs/tiny.yaml --seed 1",
    )
    add = parser.add_argument
    add("--config", required=True, help="a YAML file such as training/configs/tiny.yaml")
    add("--out", type=Path, help="folder of the run (build/training/NAME); with Ray, on shared storage")
    add("--seed", type=int, help="seed to use instead of the config's")
    add("--resume", action="store_true", help="continue the run in the folder")
    add("--ray-workers", type=int, metavar="N", help="train on a Ray cluster with N processes")
    add("--gpus", action="store_true", help="with --ray-workers: one GPU per process")
    return parser


def is_slow_here(model: ModelConfig) -> bool:
    """Return whether the model computes in bfloat16 on a CPU without instructions for it."""
    import torch

    from serving.cpu_features import computes_bfloat16

    uses_it = model.mixed_precision or model.dtype == "bfloat16"
    return uses_it and not torch.cuda.is_available() and not computes_bfloat16()


def train(config: Config, path: Path, console: Console, *, resume: bool) -> int:
    """Run `config` in the folder `path`, and return the exit code.

    Raises:
        SettingsError: the config or the folder cannot be used.
    """
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    main_process = is_main_process()
    run_dir = RunDir.begin(path, config, resume=resume) if main_process else RunDir(path, is_main=False)
    from training.run import RunStopped, TrainingRun  # torch and TRL take seconds to import

    if main_process and is_slow_here(config.model):
        console.print(
            "model: this CPU has no bfloat16 instructions, so each step takes many times as long. "
            "Set `dtype: float32` and `mixed_precision: false`.",
            style="yellow",
        )
    try:
        report = TrainingRun(config, run_dir, world_size()).run()
    except RunStopped as exc:
        console.print(f"Stopped after step {exc.step}. Run the same command with --resume to continue.")
        return 130
    except Exception as exc:
        if (reason := write_error(exc)) is None:
            raise
        console.print(f"[red]{path} cannot be written: {reason}. Fix this and continue with --resume.[/red]")
        return 1
    if main_process:
        console.print(*lines(report), sep="\n", highlight=False)
        console.print(f"{run_dir.final}\ncurves: tensorboard --logdir {path}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
