"""`podium load SCENARIO --url http://127.0.0.1:8000`: load a server, show progress, write a report.

Exit codes: 0 if every request was answered; 1 if a request failed or could not be started; 2 if the server
cannot be loaded or an option is wrong; 130 after Ctrl-C. A report is written in all cases but 2. If it cannot
be written at the end (exit code 1), it is written to a temporary folder, whose name is printed.
"""

import argparse
import importlib
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from loadtest.objective import objective, seconds
from loadtest.recording import Recording, Sample
from loadtest.request_options import RequestOptions, first_worker
from loadtest.scenarios import SCENARIOS, Scenario
from podium.command_line.options import count, option, rate, url
from podium.command_line.process import allow_open_files, machine, restore_interrupts


class NothingToLoadError(Exception):
    """The server does not answer, or does not serve what a scenario calls."""


@dataclass(frozen=True, slots=True)
class LoadRun:
    """Parsed command line."""

    name: str
    scenario: Scenario
    url: str
    options: RequestOptions
    limits_ms: dict[str, float]
    out: Path


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    scenarios = "\n".join(f"  {name:14}{each.about}" for name, each in SCENARIOS.items())
    hints = "durations: 500ms, 60s, 10m, 1h. See docs/load-testing.md for the meaning of each figure.\nexample: podium load mixed --duration 60s"
    parser = argparse.ArgumentParser(
        prog="podium load",
        description="Load a running Podium with a scenario and write a report.",
        epilog=f"scenarios:\n{scenarios}\n\n{hints}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("scenario", choices=list(SCENARIOS), metavar="SCENARIO", help="one of the scenarios below")
    add("--url", type=url, default="http://127.0.0.1:8000", help="address of the server (%(default)s)")
    add("--duration", type=option(seconds), help="how long to send requests (default: of the scenario)")
    add("--users", type=count, help="closed loop: users at the maximum of the shape")
    add("--rate", type=rate, help="open loop: requests per second at the maximum of the shape")
    add("--at-most", type=count, help="open loop: maximum concurrent requests (512)")
    add("--seed", type=int, help="open loop: seed of arrivals and mix (0)")
    default = "first_token=2s,end=30s"
    add("--objective", type=option(objective), default=default, help="limits of a good answer (%(default)s)")
    add("--model", default="podium-mini", help="model of chat, stream and cancel users (%(default)s)")
    add("--ultra", default="podium-ultra", help="model of ultra users (%(default)s)")
    add("--worker", default="", help="model of pass-through users (default: the first listed worker)")
    add("--answer-tokens", type=count, default=64, help="maximum tokens of an answer (%(default)s)")
    add("--deadline", type=option(seconds), default="60s", help="deadline of a request (%(default)s)")
    add("--out", type=Path, help="folder of the report (build/load/SCENARIO)")
    return parser


def parse(argv: Sequence[str] | None = None) -> LoadRun:
    """Parse the command line, or exit with a usage error."""
    parser = make_parser()
    options = parser.parse_args(argv)
    chosen = SCENARIOS[options.scenario]
    numbers = {name: getattr(options, name) for name in ("users", "rate", "at_most", "seed")}
    for name, loop in (("users", "closed"), ("rate", "open"), ("at_most", "open"), ("seed", "open")):
        if numbers[name] is not None and chosen.loop != loop:
            parser.error(
                f"--{name.replace('_', '-')} applies only to the {loop} loop, but {options.scenario} uses the {chosen.loop} loop"
            )
    numbers["duration_s"] = options.duration
    return LoadRun(
        options.scenario,
        replace(chosen, **{name: value for name, value in numbers.items() if value is not None}),
        options.url,
        RequestOptions(options.model, options.ultra, options.worker, options.answer_tokens, options.deadline),
        options.objective,
        options.out or Path("build/load") / options.scenario,
    )


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    load = parse(argv)
    restore_interrupts()
    # Import the loop first, because Locust patches threads.
    loop = importlib.import_module(f"loadtest.{load.scenario.loop}_loop")
    from loadtest import report
    from loadtest.console import RunConsole
    from loadtest.records import fill
    from loadtest.summary import summary

    allow_open_files()
    console = RunConsole()
    try:
        served, options = find_models(load)
        report.check_writable(load.out)
    except NothingToLoadError as exc:
        console.say(f"[bold red]{exc}[/]")
        return 2
    except OSError as exc:
        console.say(
            f"[bold red]--out: {load.out} is not writable ({exc.strerror}). Choose another folder.[/]"
        )
        return 2
    load = replace(load, options=options)
    recording, series, interrupted = _run(load, loop.run, console)
    ran_s = min(recording.ended_s, load.scenario.duration_s)
    looked_for, found = fill(recording.samples, load.url)
    figures = summary(recording.samples, ran_s, load.limits_ms, interrupted=interrupted)
    content = _describe(load, served, argv) | {
        "interrupted": interrupted,
        "records": {"looked_for": looked_for, "found": found},
        "figures": figures,
    }
    console.show_figures(figures)
    is_written = _write(load.out, content, recording.samples, series, console)
    if interrupted:
        return 130
    missing = sum(figures["requests"][name] for name in ("failed", "not_started", "unfinished"))
    return 0 if is_written and not missing else 1


def _write(out: Path, content: dict[str, Any], samples: list[Sample], series: Any, console: Any) -> bool:
    """Write the report to `out`, or to a temporary folder if that fails. Return whether it is in `out`."""
    from loadtest import report

    try:
        console.say(f"Report: {report.write(out, content, samples, series)}")
    except OSError as exc:
        console.say(f"[bold red]The report cannot be written to {out} ({exc.strerror}).[/]")
        elsewhere = Path(tempfile.mkdtemp(prefix="podium-load-"))
        console.say(f"It was written to {report.write(elsewhere, content, samples, series)} instead.")
        return False
    return True


def _run(
    load: LoadRun, run: Callable[[Scenario, str, RequestOptions, Recording], None], console: Any
) -> tuple[Recording, dict[str, list[tuple[float, float]]], bool]:
    """Run the load. Return the recording, the server's state over time, and whether
    Ctrl-C stopped the run.
    """
    from loadtest.background import every
    from loadtest.server_state import Poller

    recording = Recording()
    poller = Poller(load.url, recording)
    interrupted = False
    with (
        every(1.0, poller.poll),
        console.progress(load.name, load.scenario.duration_s, recording) as refresh,
        every(0.25, refresh),
    ):
        try:
            run(load.scenario, load.url, load.options, recording)
        except KeyboardInterrupt:
            interrupted = True
        recording.ended_s = recording.now_s
    return recording, poller.series, interrupted


def find_models(load: LoadRun) -> tuple[list[str], RequestOptions]:
    """Return the served model names, and the options completed with the worker of pass-through users.

    Raises:
        NothingToLoadError: the server does not answer, or does not serve a required model.
    """
    from loadtest.server_state import fetch_json

    try:
        models = fetch_json(f"{load.url}/v1/models")["data"]
        names = [model["id"] for model in models]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        remedy = "Start one with `make serve`, or set --url."
        raise NothingToLoadError(f"No Podium answers at {load.url} ({exc}). {remedy}") from exc
    options = load.options
    if not options.worker:
        options = replace(options, worker=first_worker(models))
    for kind in load.scenario.mix:
        if (name := options.model_of(kind)) not in names:
            serves = f"it serves {', '.join(names)}. Choose with --model, --ultra or --worker."
            raise NothingToLoadError(f"{load.url} has no model {name!r} for {kind} users; {serves}")
    return names, options


def _describe(load: LoadRun, served: list[str], argv: Sequence[str]) -> dict[str, Any]:
    return {
        "title": f"Podium under load: {load.name}",
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": shlex.join(["podium", "load", *argv]),
        "machine": f"{machine()} at the end",
        "url": load.url,
        "served": served,
        "scenario": {"name": load.name, **asdict(load.scenario)},
        "request": asdict(load.options),
    }


if __name__ == "__main__":
    sys.exit(main())
