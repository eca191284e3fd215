"""What the terminal shows of a run: a live bar, or a line every ten seconds in a log; and its figures at the end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.recording import NOT_STARTED, OK, PHASES, Recording

SAY_EVERY_S = 10.0


class Show:
    """Talks to standard output."""

    def __init__(self) -> None:
        self.console = Console(soft_wrap=True)

    def say(self, text: str) -> None:
        """A line."""
        self.console.print(text)

    @contextmanager
    def running(self, name: str, duration_s: float, recording: Recording) -> Iterator[Callable[[], None]]:
        """A bar for the block; call what it gives now and then."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[told]}"),
        )
        said_s = 0.0
        with Progress(*columns, console=self.console, auto_refresh=False, transient=True) as progress:
            task = progress.add_task(name, total=duration_s, told="")

            def refresh() -> None:
                nonlocal said_s
                now_s, told = recording.now_s, counts(recording)
                progress.update(task, completed=min(now_s, duration_s), told=told)
                if self.console.is_terminal:
                    progress.refresh()
                elif now_s - said_s >= SAY_EVERY_S:
                    said_s = now_s
                    self.say(f"{name}: {now_s:.0f} of {duration_s:.0f} s, {told}")

            yield refresh

    def figures(self, figures: dict[str, Any]) -> None:
        """The few that matter most."""
        drawn = Table("phase", "answers", "p50", "p95", "p99", title=counted(figures["requests"]))
        for phase in PHASES:
            if told := figures["phases_ms"]["all"][phase]:
                times = (f"{told[rank] / 1000:.3f} s" for rank in ("p50", "p95", "p99"))
                drawn.add_row(phase.replace("_", " "), str(told["n"]), *times)
        self.console.print(drawn)
        for kind, count in figures["errors"].items():
            self.say(f"[red]failed: {count} × {kind}[/]")
        good = figures["goodput"]
        self.say(
            f"good: {good['good']} of {good['judged']}, {good['per_s']} a second while requests were sent"
        )


def counts(recording: Recording) -> str:
    """How it stands."""
    outcomes = [sample.outcome for sample in recording.samples]
    failed = sum(sample.failed for sample in recording.samples) + outcomes.count(NOT_STARTED)
    return f"{outcomes.count(OK)} answered, {recording.in_flight} open, {failed} failed or not started"


def counted(requests: dict[str, Any]) -> str:
    """What became of requests, in a line."""
    names = ("due", "answered", "left", "failed", "not_started", "unfinished")
    return ", ".join(f"{requests[name]} {name.replace('_', ' ')}" for name in names if requests[name])
