"""`podium load SCENARIO --url http://127.0.0.1:8000`: load a server, show how it goes, write a report.

Exit codes: 0 all was answered; 1 something failed or could not be started; 2 there is nothing to load, or bad options;
130 stopped with Ctrl-C. The report is written in each case but 2; where it cannot be at
the end (exit code 1), it is in a temporary folder, whose name is said.
"""

import argparse
import importlib
import os
import platform
import resource
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from loadtest.asking import Asking, first_worker
from loadtest.objective import objective, seconds
from loadtest.recording import Recording, Sample
from loadtest.scenarios import SCENARIOS, Scenario


class NothingToLoadError(Exception):
    """The server is not there, or does not serve what a scenario asks."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the command line asked for."""

    name: str
    scenario: Scenario
    url: str
    asking: Asking
    limits_ms: dict[str, float]
    out: Path


def parser() -> argparse.ArgumentParser:
    """The command line."""
    listed = "\n".join(f"  {name:14}{each.about}" for name, each in SCENARIOS.items())
    made = argparse.ArgumentParser(
        prog="podium load",
        description="Load a running Podium by a scenario and write a report.",
        epilog=f"scenarios:\n{listed}\n\ndurations: 500ms, 60s, 10m, 1h. docs/load-testing.md says what each figure means.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("scenario", choices=list(SCENARIOS), metavar="SCENARIO", help="one of those below")
    made.add_argument(
        "--url", type=_valid(_url), default="http://127.0.0.1:8000", help="the server (%(default)s)"
    )
    made.add_argument("--duration", type=_valid(seconds), help="for how long requests are begun")
    made.add_argument("--users", type=_valid(_count), help="closed loop: users at the height of the shape")
    made.add_argument(
        "--rate", type=_valid(_rate), help="open loop: requests a second at the height of the shape"
    )
    made.add_argument("--at-most", type=_valid(_count), help="open loop: requests open at once (512)")
    made.add_argument("--seed", type=int, help="open loop: of arrivals and mix (0)")
    made.add_argument(
        "--objective",
        type=_valid(objective),
        default="first_token=2s,end=30s",
        help="what is good (%(default)s)",
    )
    made.add_argument("--model", default="podium-mini", help="whom chat, stream and cancel ask (%(default)s)")
    made.add_argument("--ultra", default="podium-ultra", help="whom ultra asks (%(default)s)")
    made.add_argument("--worker", default="", help="whom pass-through asks (the first worker that is listed)")
    made.add_argument(
        "--answer-tokens", type=_valid(_count), default=64, help="the longest answer (%(default)s)"
    )
    made.add_argument("--deadline", type=_valid(seconds), default="60s", help="of a request (%(default)s)")
    made.add_argument("--out", type=Path, help="folder of the report (build/load/SCENARIO)")
    return made


def ordered(arguments: Sequence[str] | None = None) -> Order:
    """Read the command line; exits 2 with a message where it is wrong."""
    read = parser().parse_args(arguments)
    chosen = SCENARIOS[read.scenario]
    given = {
        "duration_s": read.duration,
        "users": read.users,
        "rate": read.rate,
        "at_most": read.at_most,
        "seed": read.seed,
    }
    for option, loop in (("users", "closed"), ("rate", "open"), ("at_most", "open"), ("seed", "open")):
        if given[option] is not None and chosen.loop != loop:
            parser().error(f"--{option.replace('_', '-')} is of the {loop} loop, and {read.scenario} is not")
    return Order(
        read.scenario,
        replace(chosen, **{name: value for name, value in given.items() if value is not None}),
        read.url.rstrip("/"),
        Asking(read.model, read.ultra, read.worker, read.answer_tokens, read.deadline),
        read.objective,
        read.out or Path("build/load") / read.scenario,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; `arguments` in place of the shell's."""
    arguments = sys.argv[1:] if arguments is None else arguments
    order = ordered(arguments)
    loop = importlib.import_module(f"loadtest.{order.scenario.loop}_loop")  # first: Locust patches threads
    from loadtest import report
    from loadtest.console import Show
    from loadtest.records import fill
    from loadtest.summary import summary

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    show = Show()
    try:
        served, asking = _found(order)
        report.check_writable(order.out)
    except NothingToLoadError as exc:
        show.say(f"[bold red]{exc}[/]")
        return 2
    except OSError as exc:
        show.say(
            f"[bold red]--out: no report can be written to {order.out} ({exc.strerror}). Name another folder.[/]"
        )
        return 2
    order = replace(order, asking=asking)
    recording, series, interrupted = _driven(order, loop.run, show)
    ran_s = min(recording.ended_s, order.scenario.duration_s)
    looked_for, found = fill(recording.samples, order.url)
    figures = summary(recording.samples, ran_s, order.limits_ms, interrupted=interrupted)
    told = _told(order, served, arguments) | {
        "interrupted": interrupted,
        "records": {"looked_for": looked_for, "found": found},
        "figures": figures,
    }
    show.figures(figures)
    written = _written(order.out, told, recording.samples, series, show)
    if interrupted:
        return 130
    counted = figures["requests"]
    return 0 if written and not counted["failed"] + counted["not_started"] + counted["unfinished"] else 1


def _written(out: Path, told: dict[str, Any], samples: list[Sample], series: Any, show: Any) -> bool:
    """The report is where it belongs. Where it cannot be, what was measured is kept in a folder for temporary files."""
    from loadtest import report

    try:
        show.say(f"Report: {report.write(out, told, samples, series)}")
    except OSError as exc:
        show.say(f"[bold red]The report cannot be written to {out} ({exc.strerror}).[/]")
        elsewhere = Path(tempfile.mkdtemp(prefix="podium-load-"))
        show.say(f"It is kept in {report.write(elsewhere, told, samples, series)}")
        return False
    return True


def _driven(
    order: Order, run: Callable[[Scenario, str, Asking, Recording], None], show: Any
) -> tuple[Recording, dict[str, list[tuple[float, float]]], bool]:
    """The run itself: what was recorded, what the server told meanwhile, and whether it was stopped by hand."""
    from loadtest.background import every
    from loadtest.server_state import Poller

    recording = Recording()
    poller = Poller(order.url, recording)
    interrupted = False
    with (
        every(1.0, poller.look),
        show.running(order.name, order.scenario.duration_s, recording) as refresh,
        every(0.25, refresh),
    ):
        try:
            run(order.scenario, order.url, order.asking, recording)
        except KeyboardInterrupt:
            interrupted = True
        recording.ended_s = recording.now_s
    return recording, poller.series, interrupted


def _found(order: Order) -> tuple[list[str], Asking]:
    """The names that are served, and whom to ask.

    Raises:
        NothingToLoadError: nobody answers, or a name that is needed is not served.
    """
    from loadtest.server_state import fetched

    try:
        models = fetched(f"{order.url}/v1/models")["data"]
        names = [model["id"] for model in models]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise NothingToLoadError(
            f"No Podium answers at {order.url} ({exc}). Start one with `make serve`, or name another with --url."
        ) from exc
    asking = order.asking
    if not asking.worker:
        asking = replace(asking, worker=first_worker(models))
    for kind in order.scenario.mix:
        if asking.name(kind) not in names:
            raise NothingToLoadError(
                f"{order.url} serves no {asking.name(kind)!r} for {kind}; it serves {', '.join(names)}."
                " Choose with --model, --ultra or --worker."
            )
    return names, asking


def _told(order: Order, served: list[str], arguments: Sequence[str]) -> dict[str, Any]:
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "title": f"Podium under load: {order.name}",
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": shlex.join(["podium", "load", *arguments]),
        "machine": f"{os.cpu_count()} cores, {memory_gb:.0f} GB, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f} at the end",
        "url": order.url,
        "served": served,
        "scenario": {"name": order.name, **asdict(order.scenario)},
        "asking": asdict(order.asking),
    }


def _valid(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """`read` for argparse, which shows the message of this error only."""

    def checked(text: str) -> Any:
        try:
            return read(text)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(str(exc)) from exc

    return checked


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"{text!r} does not say how to speak to it; write http://{text}")
    return text


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(f"{text} is below 1")
    return number


def _rate(text: str) -> float:
    if not 0 < (number := float(text)) < 100_000:
        raise ValueError(f"{text} requests a second is no rate; write a number above 0")
    return number


if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job starts with it ignored
    sys.exit(main())
