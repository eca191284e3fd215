"""`make train-tiny`: train a conductor of under a million parameters in minutes on two cores.

This tests the whole loop (questions, warm start, runs, reward, GRPO, held-out figures) on SYNTHETIC questions
and workers. Each seed is a separate `podium train` on one thread; two run at a time. Writes
`build/train-tiny.json` and `build/train-tiny.png`.
"""
# The types of matplotlib are partial.
# pyright: reportUnknownMemberType=false

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

from rich.console import Console
from rich.progress import TaskID
from typer import Option

from podium.command_line import terminal
from podium.command_line.program import Program
from training.config import Config, load
from training.report import best_alone

SOURCE = "skills"
"""Source of the questions in `tiny.yaml`."""
SEEDS = (0, 1, 2)
CONCURRENCY = 2
POLL_S = 0.5
LOGGED_EVERY = 10
"""Number of steps of the warm start per point of its curve."""
BARS = ("before", "best_fixed_worker", "after", "composite_before", "composite_after")
MEANS = (*BARS, "before_sampled", "single_after", "right_access_after", "parsed_after")


main = Program("python -m training.tiny")


@main.command()
def run(
    config: str = "training/configs/tiny.yaml",
    out: Path = Path("build"),
    seeds: Annotated[list[int] | None, Option(metavar="SEED...", show_default="0, 1, 2")] = None,
) -> int:
    """Train the tiny conductor. Exit with 0 if every seed succeeded, 1 if one failed, 130 if stopped."""
    seeds = seeds or [*SEEDS]
    console, start = terminal.console(markup=True), time.monotonic()
    folder = out / "train-tiny"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        failed = _train_all(config, folder, seeds, console)
    except KeyboardInterrupt:
        console.print("Stopped. No results were written.")
        return 130
    if failed:
        log = folder / f"{failed[0]}.log"
        console.print(f"[red]The training with seed {failed[0]} failed. Last lines of {log}:[/red]")
        console.print(log.read_text("utf-8")[-2000:], markup=False)
        return 1
    results = figures({seed: _report(folder, seed) for seed in seeds})
    results["minutes"] = round((time.monotonic() - start) / 60, 2)
    results["synthetic"] = "Questions and workers are small programs, not language models."
    (out / "train-tiny.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    plot(folder, seeds, results, out / "train-tiny.png")
    _print(console, results)
    return 0


def _report(folder: Path, seed: int) -> dict[str, Any]:
    return json.loads((folder / str(seed) / "report.json").read_text(encoding="utf-8"))


def figures(reports: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return the means over all seeds, and the figures of each seed under `seeds`."""
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


def _train_all(config: str, folder: Path, seeds: Sequence[int], console: Console) -> list[int]:
    """Train all seeds, and return those that failed."""
    total = _count_expected_lines(load(config))
    waiting, running, failed = list(seeds), dict[int, subprocess.Popen[bytes]](), list[int]()
    try:
        with terminal.progress(console) as bars:
            tasks: dict[int, TaskID] = {}
            while waiting or running:
                while waiting and len(running) < CONCURRENCY:
                    seed = waiting.pop(0)
                    running[seed] = _start(config, folder, seed)
                    tasks[seed] = bars.add_task(f"seed {seed}", total=total)
                time.sleep(POLL_S)
                for seed, process in list(running.items()):
                    bars.update(tasks[seed], completed=_lines(folder / str(seed)))
                    if process.poll() is not None:
                        del running[seed]
                        failed += [seed] if process.returncode else []
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
    return failed


def _start(config: str, folder: Path, seed: int) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    single = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    options = ["--config", config, "--seed", str(seed), "--out", str(folder / str(seed))]
    command = [sys.executable, "-m", "training.cli", *options]
    with (folder / f"{seed}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | single)


def _count_expected_lines(config: Config) -> int:
    warm = config.warm_start
    steps = int(warm.examples * warm.epochs // warm.batch // LOGGED_EVERY) if warm else 0
    return steps + config.grpo.steps


def _lines(run: Path) -> int:
    files = [run / "warm_curves.jsonl", run / "curves.jsonl"]
    return sum(len(file.read_bytes().splitlines()) for file in files if file.exists())


def plot(folder: Path, seeds: Sequence[int], results: dict[str, Any], target: Path) -> None:
    """Plot the share of right plans during training, and the held-out figures."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    for seed in seeds:
        lines = (folder / str(seed) / "curves.jsonl").read_text("utf-8").splitlines()
        curve = [json.loads(line) for line in lines]
        shares = [float(each["plan/right"]) for each in curve]
        left.plot([each["step"] for each in curve], shares, label=f"seed {seed}")
    left.set(xlabel="GRPO step", ylabel="share of sampled plans that are right", ylim=(0, 1.05))
    left.legend()
    right.bar([name.replace("_", "\n") for name in BARS], [results[name] for name in BARS])
    for seed in results["seeds"].values():
        right.plot(range(len(BARS)), [seed[name] for name in BARS], "k.", markersize=4)
    right.set(ylim=(0, 1.05), ylabel="held-out questions right (dots: seeds)")
    figure.suptitle("A conductor of under a million parameters; synthetic questions and workers")
    figure.tight_layout()
    figure.savefig(target, dpi=120)


def _print(console: Console, results: dict[str, Any]) -> None:
    console.print(
        "Held-out questions answered correctly, means over the seeds (SYNTHETIC questions and workers):"
    )
    for name in (*BARS, "right_access_after"):
        each = "  ".join(f"{seed[name]:.3f}" for seed in results["seeds"].values())
        console.print(f"  {name:20} {results[name]:.3f}   ({each})", highlight=False)
    console.print(f"  minutes              {results['minutes']}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
