"""`make train-tiny`: train a conductor of under a million parameters in minutes on two cores.

This tests the whole loop (questions, warm start, runs, reward, GRPO, held-out figures) on SYNTHETIC questions
and workers. Each seed is a separate `podium train` on one thread; two run at a time. Writes
`build/train-tiny.json`.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

from typer import Option

from podium.command_line.process import restore_interrupts
from podium.command_line.program import Program
from podium.command_line.terminal import console
from training.report import best_alone

SOURCE = "skills"
"""Source of the questions in `tiny.yaml`."""
SEEDS = (0, 1, 2)
CONCURRENCY = 2
ONE_THREAD = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
SHOWN = ("before", "best_fixed_worker", "after", "composite_before", "composite_after", "right_access_after")
MEANS = (*SHOWN, "before_sampled", "single_after", "parsed_after")


main = Program("python -m training.tiny")


@main.command()
def run(
    config: str = "training/configs/tiny.yaml",
    out: Path = Path("build"),
    seeds: Annotated[list[int] | None, Option(metavar="SEED...", show_default="0, 1, 2")] = None,
) -> int:
    """Train the tiny conductor. Exit with 0 if every seed succeeded, 1 if one failed, 130 if stopped."""
    seeds, folder, began_s = seeds or [*SEEDS], out / "train-tiny", time.monotonic()
    restore_interrupts()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with ThreadPoolExecutor(CONCURRENCY) as pool, ExitStack() as trainings:
            statuses = list(pool.map(partial(_train, config, folder, trainings), seeds))
    except KeyboardInterrupt:
        console().print("Stopped. No results were written.")
        return 130
    for seed, status in zip(seeds, statuses, strict=True):
        if status:
            log = folder / f"{seed}.log"
            console().print(
                f"The training with seed {seed} failed. Last lines of {log}:\n{log.read_text('utf-8')[-2000:]}"
            )
            return 1
    reports = {seed: json.loads((folder / str(seed) / "report.json").read_text("utf-8")) for seed in seeds}
    results = figures(reports) | {
        "minutes": round((time.monotonic() - began_s) / 60, 2),
        "synthetic": "Questions and workers are small programs, not language models.",
    }
    (out / "train-tiny.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    console().print(
        "Held-out questions answered correctly, means over the seeds (SYNTHETIC questions and workers):"
    )
    for name in (*SHOWN, "minutes"):
        console().print(f"  {name:20} {results[name]:.3f}", highlight=False)
    return 0


def _train(config: str, folder: Path, trainings: ExitStack, seed: int) -> int:
    """Run a training, which `trainings` terminates when it is closed. Return its exit code."""
    options = ["--config", config, "--seed", str(seed), "--out", str(folder / str(seed))]
    console().print(f"Training seed {seed}; its log is {folder / f'{seed}.log'}.")
    with (folder / f"{seed}.log").open("wb") as log:
        command = [sys.executable, "-m", "training.cli", *options]
        training = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | ONE_THREAD
        )
    trainings.callback(training.terminate)
    return training.wait()


def figures(reports: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of each metric over all seeds. The metrics of each seed are under `seeds`."""
    seeds = {str(seed): _seed_figures(report) for seed, report in reports.items()}
    return {name: round(mean(each[name] for each in seeds.values()), 4) for name in MEANS} | {"seeds": seeds}


def _seed_figures(report: dict[str, Any]) -> dict[str, Any]:
    before, after = report["before"][SOURCE], report["after"][SOURCE]
    return {
        "before": before["right"],
        "before_sampled": before["sampled"],
        "after": after["right"],
        "best_fixed_worker": best_alone(report, SOURCE)[1],
        "fixed_workers": report["alone"][SOURCE]["workers"],
        "single_after": after["single"],
        "composite_before": before["composite"],
        "composite_after": after["composite"],
        "right_access_after": after["right_access"],
        "parsed_before": before["parsed"],
        "parsed_after": after["parsed"],
        "steps_after": after["steps"],
        "minutes": report["minutes"],
        "parameters": report["parameters"],
        "held_out_questions": after["questions"],
    }


if __name__ == "__main__":
    sys.exit(main())
