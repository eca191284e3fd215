"""`python -m training --config FILE`: teach a conductor. `--resume` goes on with a stopped run."""

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console

from serving.settings import SettingsError
from training.config import Config, load

OUT = Path("build/training")


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 done, 1 not usable as it is, 130 stopped and resumable."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("--config", required=True, help="a YAML file such as training/configs/tiny.yaml")
    parser.add_argument("--out", type=Path, help="the run's folder; build/training/NAME where not given")
    parser.add_argument("--seed", type=int, help="in place of the config's")
    parser.add_argument("--resume", action="store_true", help="go on with the run that the folder holds")
    given = parser.parse_args(arguments)
    console = Console(stderr=True)
    try:
        config = load(given.config)
        if given.seed is not None:
            config = config.model_copy(update={"seed": given.seed})
        return trained(config, given.out or OUT / config.name, console, resume=given.resume)
    except SettingsError as exc:
        console.print(f"[red]{exc.message}[/red]", highlight=False)
        return 1


def trained(config: Config, path: Path, console: Console, *, resume: bool) -> int:
    """Run `config` in `path`."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from training.folder import (
        RunFolder,  # torch and TRL take seconds to import; a wrong config is told at once
    )

    folder = RunFolder.begun(path, config, resume=resume)
    from training.run import Stopped, TrainingRun, processes

    try:
        report = TrainingRun(config, folder, processes()).run()
    except Stopped as exc:
        console.print(f"Stopped after step {exc.step}; the same command with --resume goes on.")
        return 130
    except OSError as exc:
        console.print(
            f"[red]{path} cannot be written: {exc.strerror}. What was finished is there; --resume goes on.[/red]"
        )
        return 1
    before, after = report["before"].get("right"), report["after"].get("right")
    if before is not None:
        console.print(f"held-out questions right: {before:.3f} before, {after:.3f} after")
    console.print(f"{folder.final}\ncurves: tensorboard --logdir {path}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
