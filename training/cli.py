"""`podium train --config FILE`: train a conductor on this machine or on a Ray cluster.

Exit codes: 0 if done; 1 if the config is invalid or a file cannot be written; 130 if the run was stopped and
can be resumed.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Option

from podium.command_line import terminal
from podium.command_line.process import restore_interrupts
from podium.command_line.program import CommandError, Program
from serving.cpu_features import computes_bfloat16
from serving.settings.settings import SettingsError
from training.config import Config, ModelConfig, load, parse
from training.report import lines
from training.run_dir import RunDir, is_main_process, world_size, write_error

OUT = Path("build/training")


main = Program("podium train")


@main.command(epilog="Example: podium train --config training/configs/tiny.yaml --seed 1")
def run(
    config: Annotated[
        str, Option(metavar="FILE", help="training config, such as training/configs/tiny.yaml")
    ],
    out: Annotated[
        Path | None,
        Option(
            help="folder of the run; with --ray-workers, on shared storage",
            show_default="build/training/NAME",
        ),
    ] = None,
    seed: Annotated[int | None, Option(help="seed, instead of the one in the config")] = None,
    resume: Annotated[bool, Option("--resume", help="continue the run in the folder --out")] = False,
    ray_workers: Annotated[
        int | None, Option(metavar="N", help="train on a Ray cluster with this number of processes")
    ] = None,
    gpus: Annotated[bool, Option("--gpus", help="with --ray-workers: one GPU per process")] = False,
) -> int:
    """Train a conductor by reinforcement learning."""
    restore_interrupts()
    try:
        parsed = load(config)
        if seed is not None:
            parsed = parse(parsed.model_dump(mode="json") | {"seed": seed}, "--seed")
        folder = out or OUT / parsed.name
        if ray_workers:
            from training.ray_train import train_on_ray

            train_on_ray(parsed, folder, ray_workers, gpus=gpus, resume=resume)
            return 0
        return train(parsed, folder, terminal.console(errors=True, markup=True), resume=resume)
    except SettingsError as exc:
        raise CommandError(exc.message) from exc
    except KeyboardInterrupt:
        raise CommandError("Stopped. Run the same command with --resume to continue.", 130) from None


def is_slow_here(model: ModelConfig) -> bool:
    """Return whether the model computes in bfloat16 on a CPU that has no instructions for it."""
    import torch

    uses_it = model.mixed_precision or model.dtype == "bfloat16"
    return uses_it and not torch.cuda.is_available() and not computes_bfloat16()


def train(config: Config, path: Path, console: Console, *, resume: bool) -> int:
    """Run `config` in the folder `path`, and return the exit code."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    main_process = is_main_process()
    run_dir = RunDir.begin(path, config, resume=resume) if main_process else RunDir(path, is_main=False)
    from training.run import RunStopped, TrainingRun  # torch and TRL take seconds to import

    if main_process and is_slow_here(config.model):
        console.print(
            "Warning: this CPU has no bfloat16 instructions, so each step is much slower. "
            "Set `dtype: float32` and `mixed_precision: false` under `model`.",
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
        console.print(
            f"[red]Cannot write to {path}: {reason}. Fix the cause, and run the same command with --resume.[/red]"
        )
        return 1
    if main_process:
        console.print(*lines(report), sep="\n", highlight=False)
        console.print(f"Model: {run_dir.final}\nCurves: tensorboard --logdir {path}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
