"""`python -m loadtest.outside --url http://127.0.0.1:8000`: the same load by our open loop and by AIPerf, and whether they agree.

AIPerf (https://github.com/ai-dynamo/aiperf) is NVIDIA's load generator for language models. It is installed into an environment of
its own, `build/aiperf`, at its first use (1.2 GB). It makes its questions with the tokenizer in a folder, so that no hub is asked (its
builtin one is fetched at first use too). Both send Poisson arrivals of streamed questions at the same rate to the same model;
compared are the medians of the time to the first token and of the whole request. Ours is run before and after it: how far
the two differ says what the machine's noise is.

Exit codes: 0 they agree within the tolerance; 1 they do not; 2 one of them could not be run.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.objective import seconds

Json = dict[str, Any]
VERSION = "0.13.0"
ENVIRONMENT = Path("build/aiperf")
COMPARED = {"first_token": "time_to_first_token", "end": "request_latency"}
"""Our phase and AIPerf's metric, both in milliseconds."""
WARM_UP = "3s"


class OutsideError(Exception):
    """A tool could not be run; the message ends with what it said last."""


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.outside",
        description="Compare our open loop with AIPerf on a running server.",
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (%(default)s)")
    parser.add_argument("--model", default="podium-mini", help="who is asked (%(default)s)")
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second (%(default)s)")
    parser.add_argument("--duration", default="30s", help="of each of the three runs (%(default)s)")
    parser.add_argument(
        "--tolerance", type=float, default=0.05, help="part by which medians may differ (%(default)s)"
    )
    parser.add_argument(
        "--tokenizer", default="models/smollm2-135m", help="a folder with one, for AIPerf (%(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("build/load/outside"), help="folder (%(default)s)")
    asked = parser.parse_args()
    try:
        asked.duration_s = seconds(asked.duration)
    except ValueError as exc:
        parser.error(f"--duration: {exc}")
    try:
        compared = measured(asked)
    except (OutsideError, OSError, ValueError, KeyError) as exc:
        print(f"Not compared: {exc}", file=sys.stderr)
        return 2
    written = as_markdown(compared)
    (asked.out / "comparison.json").write_text(json.dumps(compared, indent=2) + "\n")
    (asked.out / "comparison.md").write_text(written)
    print(
        f"\n{written}\nWritten to {asked.out}/comparison.md and .json; reports of the runs are beside them."
    )
    return 0 if compared["agree"] else 1


def measured(asked: argparse.Namespace) -> Json:
    """Ours, theirs, ours again.

    Raises:
        OutsideError: one of them could not be run.
    """
    asked.out.mkdir(parents=True, exist_ok=True)
    tool = installed()
    _ours(asked, asked.out / "warm-up", WARM_UP)
    before = _ours(asked, asked.out / "ours-before", asked.duration)
    theirs = _theirs(asked, tool)
    after = _ours(asked, asked.out / "ours-after", asked.duration)
    return compare(before, theirs, after, asked.tolerance) | {
        "date": time.strftime("%Y-%m-%d %H:%M %z"),
        "command": " ".join(["python", "-m", "loadtest.outside", *sys.argv[1:]]),
        "outside": f"aiperf {VERSION}",
        "machine": f"{os.cpu_count()} cores, server and generators share them",
    }


def compare(
    before: Mapping[str, Json], theirs: Mapping[str, Json], after: Mapping[str, Json], tolerance: float
) -> Json:
    """The medians beside each other; ours is the mean of the two runs.

    Args:
        before: our phases with their `p50` and `n`.
        theirs: AIPerf's metrics with their `p50` and `count`.
        after: as `before`.
        tolerance: part of ours by which theirs may differ.
    """
    rows: list[Json] = []
    for phase, metric in COMPARED.items():
        pair = (before[phase]["p50"], after[phase]["p50"])
        ours_ms, theirs_ms = sum(pair) / 2, theirs[metric]["p50"]
        rows.append({
            "figure": f"{phase} p50", "ours_ms": ours_ms, "theirs_ms": theirs_ms, "apart": abs(theirs_ms - ours_ms) / ours_ms,
            "ours_apart_from_itself": abs(pair[0] - pair[1]) / ours_ms,
            "requests": [before[phase]["n"], theirs[metric]["count"], after[phase]["n"]],
        })  # fmt: skip
    return {"figures": rows, "tolerance": tolerance, "agree": all(row["apart"] <= tolerance for row in rows)}


def as_markdown(compared: Json) -> str:
    """A table that can be read by itself."""
    lines = [
        f"# Our open loop and {compared['outside']} on the same server",
        "",
        f"{compared['date']}, `{compared['command']}`, {compared['machine']}",
        "",
        "| figure | ours | theirs | apart | ours, before and after | requests: ours, theirs, ours |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in compared["figures"]:
        counts = ", ".join(str(int(count)) for count in row["requests"])
        lines.append(
            f"| {row['figure']} | {row['ours_ms']:.1f} ms | {row['theirs_ms']:.1f} ms | {row['apart']:.1%}"
            f" | {row['ours_apart_from_itself']:.1%} | {counts} |"
        )
    verdict = "They agree" if compared["agree"] else "They do NOT agree"
    return "\n".join([*lines, "", f"{verdict} within {compared['tolerance']:.0%}.", ""])


def installed() -> Path:
    """AIPerf's command; installs it where it is not there in this version.

    Raises:
        OutsideError: it could not be installed.
    """
    command = ENVIRONMENT / "bin" / "aiperf"
    marker = ENVIRONMENT / f"aiperf-{VERSION}"
    if not marker.exists():
        print(f"Installing aiperf {VERSION} into {ENVIRONMENT} (1.2 GB, some minutes, once) ...", flush=True)
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        _run(
            [str(ENVIRONMENT / "bin" / "pip"), "install", "--quiet", f"aiperf=={VERSION}"],
            ENVIRONMENT / "pip.log",
        )
        marker.touch()
    return command


def _ours(asked: argparse.Namespace, folder: Path, duration: str) -> dict[str, Json]:
    """Our phases: in a process of its own, as AIPerf is."""
    print(f"Ours, {duration} ...", flush=True)
    options = {
        "url": asked.url,
        "model": asked.model,
        "rate": asked.rate,
        "duration": duration,
        "out": folder,
    }
    command = [sys.executable, "-m", "loadtest.run", "open-stream", *_flags(options)]
    folder.mkdir(parents=True, exist_ok=True)
    _run(command, folder / "run.log")
    report = json.loads((folder / "report.json").read_text())
    return report["figures"]["phases_ms"]["all"]


def _theirs(asked: argparse.Namespace, tool: Path) -> dict[str, Json]:
    """AIPerf's metrics."""
    folder = asked.out / "aiperf"
    folder.mkdir(parents=True, exist_ok=True)
    print(f"AIPerf, {asked.duration} (starts slowly) ...", flush=True)
    options = {
        "url": asked.url, "model": asked.model, "endpoint-type": "chat", "request-rate": asked.rate, "arrival-pattern": "poisson",
        "random-seed": 0, "benchmark-duration": asked.duration_s, "warmup-request-count": 4, "synthetic-input-tokens-mean": 16,
        "output-tokens-mean": 64, "tokenizer": Path(asked.tokenizer).resolve(), "output-artifact-dir": folder, "ui": "none",
    }  # fmt: skip
    switches = ["--streaming", "--use-server-token-count", "--no-gpu-telemetry", "--no-server-metrics"]
    command = [str(tool), "profile", *_flags(options), *switches]
    _run(command, folder / "run.log")
    return json.loads((folder / "profile_export_aiperf.json").read_text())


def _flags(options: Mapping[str, object]) -> list[str]:
    return [text for name, value in options.items() for text in (f"--{name}", str(value))]


def _run(command: list[str], log: Path) -> None:
    """Run it to its end, its output in `log`.

    Raises:
        OutsideError: it failed.
    """
    with log.open("w") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        said = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise OutsideError(f"{Path(command[0]).name} ended with {done.returncode}; {log} ends:\n{said}")


if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job starts with it ignored
    sys.exit(main())
