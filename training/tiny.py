"""`make train-tiny`: a conductor of less than a million parameters learns in minutes on two CPU cores, with three seeds.

A test of the whole loop (questions, warm start, engine, reward, GRPO, held-out figures), on SYNTHETIC questions and workers. Each seed
is a run of `python -m training` of its own on one thread, two at a time. Writes `build/train-tiny.json` and `build/train-tiny.png`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID

from training.config import Config, load
from training.report import best_alone

SOURCE = "skills"
"""What `tiny.yaml` asks."""
SEEDS = (0, 1, 2)
AT_ONCE = 2
POLL_S = 0.5
LOGGED_EVERY = 10
"""Steps of the warm start between two lines of its curve."""


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 where every seed was trained, else 1."""
    parser = argparse.ArgumentParser(prog="python -m training.tiny", description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="training/configs/tiny.yaml")
    parser.add_argument("--out", type=Path, default=Path("build"))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    given = parser.parse_args(arguments)
    console, began = Console(), time.monotonic()
    folder = given.out / "train-tiny"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        failed = _run_all(given.config, folder, given.seeds, console)
    except KeyboardInterrupt:
        console.print("Stopped; nothing was written.")
        return 130
    if failed:
        console.print(f"[red]Seed {failed[0]} failed; the end of {folder / str(failed[0])}.log:[/red]")
        console.print((folder / f"{failed[0]}.log").read_text("utf-8")[-2000:], markup=False)
        return 1
    told = figures({seed: _json(folder / str(seed) / "report.json") for seed in given.seeds})
    told["minutes"] = round((time.monotonic() - began) / 60, 2)
    told["synthetic"] = "Questions and workers are small programs, not language models."
    (given.out / "train-tiny.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    plot(folder, given.seeds, told, given.out / "train-tiny.png")
    _tell(console, told)
    return 0


def figures(reports: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Means over the seeds at the top, each seed's own figures below."""
    each = {
        str(seed): {
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
        for seed, report in reports.items()
        for before, after in [(report["before"][SOURCE], report["after"][SOURCE])]
    }
    names = (
        "before",
        "after",
        "best_fixed_worker",
        "composite_after",
        "composite_before",
        "before_sampled",
        "single_after",
        "right_access_after",
        "parsed_after",
    )
    return {name: round(mean(one[name] for one in each.values()), 4) for name in names} | {"seeds": each}


def _run_all(config: str, folder: Path, seeds: Sequence[int], console: Console) -> list[int]:
    """Train all seeds; those that failed."""
    total = _lines_expected(load(config))
    waiting, running, failed = list(seeds), dict[int, subprocess.Popen[bytes]](), list[int]()
    try:
        with Progress(console=console) as progress:
            bars: dict[int, TaskID] = {}
            while waiting or running:
                while waiting and len(running) < AT_ONCE:
                    seed = waiting.pop(0)
                    running[seed] = _started(config, folder, seed)
                    bars[seed] = progress.add_task(f"seed {seed}", total=total)
                time.sleep(POLL_S)
                for seed, process in list(running.items()):
                    progress.update(bars[seed], completed=_lines(folder / str(seed)))
                    if process.poll() is not None:
                        del running[seed]
                        failed += [seed] if process.returncode else []
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
    return failed


def _started(config: str, folder: Path, seed: int) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [
        sys.executable,
        "-m",
        "training.cli",
        "--config",
        config,
        "--seed",
        str(seed),
        "--out",
        str(folder / str(seed)),
    ]
    with (folder / f"{seed}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def _lines_expected(config: Config) -> int:
    warm = config.warm_start
    steps = int(warm.examples * warm.epochs // warm.batch // LOGGED_EVERY) if warm else 0
    return steps + config.grpo.steps


def _lines(run: Path) -> int:
    files = [run / "warm_curves.jsonl", run / "curves.jsonl"]
    return sum(len(file.read_bytes().splitlines()) for file in files if file.exists())


def plot(folder: Path, seeds: Sequence[int], told: dict[str, Any], target: Path) -> None:
    """The share of right plans while training, and the held-out figures."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    for seed in seeds:
        curve = [
            json.loads(line) for line in (folder / str(seed) / "curves.jsonl").read_text("utf-8").splitlines()
        ]
        left.plot(
            [each["step"] for each in curve],
            [float(each["plan/right"]) for each in curve],
            label=f"seed {seed}",
        )
    left.set(xlabel="GRPO step", ylabel="sampled plans that answer rightly", ylim=(0, 1.05))
    left.legend()
    names = ["before", "best_fixed_worker", "after", "composite_before", "composite_after"]
    right.bar([name.replace("_", "\n") for name in names], [told[name] for name in names])
    for seed in told["seeds"].values():
        right.plot(range(len(names)), [seed[name] for name in names], "k.", markersize=4)
    right.set(ylim=(0, 1.05), ylabel="held-out questions right (dots: seeds)")
    figure.suptitle("A conductor of under a million parameters; synthetic questions and workers")
    figure.tight_layout()
    figure.savefig(target, dpi=120)


def _tell(console: Console, told: dict[str, Any]) -> None:
    console.print(
        "Held-out questions answered rightly, means of the seeds (SYNTHETIC questions and workers):"
    )
    for name in (
        "before",
        "best_fixed_worker",
        "after",
        "composite_before",
        "composite_after",
        "right_access_after",
    ):
        each = "  ".join(f"{seed[name]:.3f}" for seed in told["seeds"].values())
        console.print(f"  {name:20} {told[name]:.3f}   ({each})", highlight=False)
    console.print(f"  minutes              {told['minutes']}", highlight=False)


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())
