"""`podium load SCENARIO --url http://127.0.0.1:8000`: load a server, show progress, and write a report.

Exit codes: 0 if every request was answered; 1 if a request failed or could not be started; 2 if the server
cannot be loaded or an option is wrong; 130 after Ctrl-C. A report is written in all cases but 2. If it cannot
be written to `--out`, the exit code is 1, and the report goes to a temporary folder whose name is printed.
"""

import importlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option

from loadtest.objective import parse_duration, parse_objective
from loadtest.recording import Recording, Sample
from loadtest.request_options import RequestOptions, first_worker
from loadtest.scenarios import SCENARIOS, Scenario
from podium.command_line.options import option, parse_count, parse_rate, parse_url
from podium.command_line.process import allow_open_files, machine, restore_interrupts
from podium.command_line.program import Program, UsageError


class NothingToLoadError(Exception):
    """The server does not answer, or does not serve a model that a scenario calls."""


@dataclass(frozen=True, slots=True)
class LoadRun:
    name: str
    scenario: Scenario
    url: str
    options: RequestOptions
    limits_ms: dict[str, float]
    out: Path


EPILOG = (
    "scenarios:\n"
    + "\n".join(f"  {name:14}{each.about}" for name, each in SCENARIOS.items())
    + "\n\nDurations: 500ms, 60s, 10m, 1h. See docs/load-testing.md for the meaning of each figure.\n\n"
    "Example: podium load mixed --duration 60s"
)
LOOPS = {"users": "closed", "rate": "open", "at_most": "open", "seed": "open"}
"""Options that apply only to scenarios with one kind of loop, with that kind."""
OBJECTIVE = "first_token=2s,end=30s"


@option
def parse_scenario(text: str) -> str:
    if text not in SCENARIOS:
        raise ValueError(f"unknown scenario {text!r}. Choose from {', '.join(SCENARIOS)}")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    scenario: Annotated[
        str,
        Argument(
            parser=parse_scenario,
            autocompletion=lambda: [*SCENARIOS],
            metavar="SCENARIO",
            help="scenario to run (listed below)",
        ),
    ]
    url: Annotated[str, Option(parser=parse_url, help="address of the server")] = "http://127.0.0.1:8000"
    duration: Annotated[
        float | None,
        Option(
            parser=option(parse_duration),
            help="time during which requests are sent",
            show_default="set by the scenario",
        ),
    ] = None
    users: Annotated[int | None, Option(parser=parse_count, help="closed loop: maximum number of users")] = (
        None
    )
    rate: Annotated[
        float | None, Option(parser=parse_rate, help="open loop: maximum requests per second")
    ] = None
    at_most: Annotated[
        int | None,
        Option(
            parser=parse_count, help="open loop: maximum number of concurrent requests", show_default="512"
        ),
    ] = None
    seed: Annotated[
        int | None, Option(help="open loop: seed of arrival times and user kinds", show_default="0")
    ] = None
    objective: Annotated[
        Mapping[str, float],
        Option(
            parser=option(parse_objective),
            help="latency limits that a good answer must meet",
            show_default=OBJECTIVE,
        ),
    ] = field(default_factory=lambda: parse_objective(OBJECTIVE))
    model: Annotated[str, Option(help="model that chat, stream and cancel users call")] = "podium-mini"
    ultra: Annotated[str, Option(help="model that ultra users call")] = "podium-ultra"
    worker: Annotated[
        str,
        Option(
            help="worker that pass-through users call", show_default="the first worker that the server lists"
        ),
    ] = ""
    answer_tokens: Annotated[
        int, Option(parser=parse_count, help="maximum number of tokens in an answer")
    ] = 64
    deadline: Annotated[
        float, Option(parser=option(parse_duration), help="deadline of a request", show_default="60s")
    ] = 60.0
    out: Annotated[Path | None, Option(help="folder for the report", show_default="build/load/SCENARIO")] = (
        None
    )

    def plan(self) -> LoadRun:
        """Return the described run. Raise UsageError if an option does not apply to the scenario's loop."""
        chosen = SCENARIOS[self.scenario]
        numbers: dict[str, Any] = {name: getattr(self, name) for name in LOOPS}
        for name, loop in LOOPS.items():
            if numbers[name] is not None and chosen.loop != loop:
                raise UsageError(
                    f"--{name.replace('_', '-')} applies only to the {loop} loop, but {self.scenario} uses the {chosen.loop} loop."
                )
        numbers["duration_s"] = self.duration
        return LoadRun(
            self.scenario,
            replace(chosen, **{name: value for name, value in numbers.items() if value is not None}),
            self.url,
            RequestOptions(self.model, self.ultra, self.worker, self.answer_tokens, self.deadline),
            dict(self.objective),
            self.out or Path("build/load") / self.scenario,
        )


main = Program("podium load")


@main.command(epilog=EPILOG)
def run(context: Context, options: LoadOptions) -> int:
    """Load-test a running Podium server with a scenario and write a report."""
    load = options.plan()
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
        served, requests = find_models(load)
        report.check_writable(load.out)
    except NothingToLoadError as exc:
        console.say(f"[bold red]{exc}[/]")
        return 2
    except OSError as exc:
        console.say(
            f"[bold red]--out: cannot write to {load.out} ({exc.strerror}). Choose another folder.[/]"
        )
        return 2
    load = replace(load, options=requests)
    recording, series, interrupted = _run(load, loop.run, console)
    ran_s = min(recording.ended_s, load.scenario.duration_s)
    looked_for, n_found = fill(recording.samples, load.url)
    figures = summary(recording.samples, ran_s, load.limits_ms, interrupted=interrupted)
    content = _describe(load, served, str(context.obj)) | {
        "interrupted": interrupted,
        "records": {"looked_for": looked_for, "found": n_found},
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
        console.say(f"[bold red]Cannot write the report to {out} ({exc.strerror}).[/]")
        elsewhere = Path(tempfile.mkdtemp(prefix="podium-load-"))
        console.say(f"Report written to {report.write(elsewhere, content, samples, series)} instead.")
        return False
    return True


def _run(
    load: LoadRun, run: Callable[[Scenario, str, RequestOptions, Recording], None], console: Any
) -> tuple[Recording, dict[str, list[tuple[float, float]]], bool]:
    """Run the load. Return the recording, the server's state over time, and whether Ctrl-C ended the run."""
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
    """Return the served models' names, and the options, completed by a worker for pass-through users."""
    from loadtest.server_state import fetch_json

    try:
        models = fetch_json(f"{load.url}/v1/models")["data"]
        names = [model["id"] for model in models]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        remedy = "Start a server with `podium serve`, or set --url."
        raise NothingToLoadError(f"No Podium server responds at {load.url} ({exc}). {remedy}") from exc
    options = load.options
    if not options.worker:
        options = replace(options, worker=first_worker(models))
    for kind in load.scenario.mix:
        if (name := options.model_of(kind)) not in names:
            serves = f"Available models: {', '.join(names)}. Choose one with --model, --ultra or --worker."
            raise NothingToLoadError(
                f"{load.url} does not serve the model {name!r} for {kind} users. {serves}"
            )
    return names, options


def _describe(load: LoadRun, served: list[str], command: str) -> dict[str, Any]:
    return {
        "title": f"Load test of Podium: {load.name}",
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": command,
        "machine": f"{machine()} at the end",
        "url": load.url,
        "served": served,
        "scenario": {"name": load.name, **asdict(load.scenario)},
        "request": asdict(load.options),
    }


if __name__ == "__main__":
    sys.exit(main())
