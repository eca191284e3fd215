"""`podium train --config FILE`: teach a conductor. `--resume` goes on with a stopped run."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from serving.settings import SettingsError
from training.config import Config, load, parse
from training.ranks import leads, processes
from training.report import lines

OUT = Path("build/training")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 done, 1 not usable as it is, 130 stopped and resumable."""
    parser = argparse.ArgumentParser(prog="podium train", description=__doc__)
    parser.add_argument("--config", required=True, help="a YAML file such as training/configs/tiny.yaml")
    parser.add_argument("--out", type=Path, help="the run's folder; build/training/NAME where not given")
    parser.add_argument("--seed", type=int, help="in place of the config's")
    parser.add_argument("--resume", action="store_true", help="go on with the run that the folder holds")
    given = parser.parse_args(arguments)
    console = Console(stderr=True)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job starts with it ignored
    try:
        config = load(given.config)
        if given.seed is not None:
            config = parse(config.model_dump(mode="json") | {"seed": given.seed}, "--seed")
        return trained(config, given.out or OUT / config.name, console, resume=given.resume)
    except SettingsError as exc:
        console.print(f"[red]{exc.message}[/red]", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("Stopped; what was finished is kept, and the same command with --resume goes on.")
        return 130


def trained(config: Config, path: Path, console: Console, *, resume: bool) -> int:
    """Run `config` in `path`; the exit status.

    Raises:
        SettingsError: it cannot be used as it is.
    """
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from training.folder import RunFolder, full  # torch and TRL take seconds to import

    folder = RunFolder.begun(path, config, resume=resume) if leads() else RunFolder(path, leads=False)
    from training.run import Stopped, TrainingRun

    try:
        report = TrainingRun(config, folder, processes()).run()
    except Stopped as exc:
        console.print(f"Stopped after step {exc.step}; the same command with --resume goes on.")
        return 130
    except Exception as exc:
        if (why := full(exc)) is None:
            raise
        console.print(
            f"[red]{path} cannot be written: {why}. What was finished is there; --resume goes on.[/red]"
        )
        return 1
    if folder.leads:
        console.print(*lines(report), sep="\n", highlight=False)
        console.print(f"{folder.final}\ncurves: tensorboard --logdir {path}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
