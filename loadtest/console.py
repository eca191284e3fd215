"""Terminal output: a progress bar, or a line every ten seconds if the output is a log; then the main
figures.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from loadtest.recording import NOT_STARTED, OK, PHASES, Recording
from podium.command_line.terminal import console, progress, table

LINE_EVERY_S = 10.0
LABELS = {"left": "disconnected"}
"""Displayed names of outcomes, if they differ from those in the report."""


class RunConsole:
    def __init__(self) -> None:
        self.console = console(markup=True)

    def say(self, text: str) -> None:
        self.console.print(text)

    @contextmanager
    def progress(self, name: str, duration_s: float, recording: Recording) -> Generator[Callable[[], None]]:
        """Show a progress bar while the block runs. Yield the function that refreshes it."""
        last_line_s = 0.0
        with progress(self.console, "state", transient=True, auto_refresh=False) as bars:
            task = bars.add_task(name, total=duration_s, state="")

            def refresh() -> None:
                nonlocal last_line_s
                now_s, state = recording.now_s, counts(recording)
                bars.update(task, completed=min(now_s, duration_s), state=state)
                if self.console.is_terminal:
                    bars.refresh()
                elif now_s - last_line_s >= LINE_EVERY_S:
                    last_line_s = now_s
                    self.say(f"{name}: {now_s:.0f} of {duration_s:.0f} s, {state}")

            yield refresh

    def show_figures(self, figures: dict[str, Any]) -> None:
        rows = table("phase", right=("answers", "p50", "p95", "p99"), title=outcomes(figures["requests"]))
        for phase in PHASES:
            if spread := figures["phases_ms"]["all"][phase]:
                times = (f"{spread[rank] / 1000:.3f} s" for rank in ("p50", "p95", "p99"))
                rows.add_row(phase.replace("_", " "), str(spread["n"]), *times)
        self.console.print(rows)
        for kind, count in figures["errors"].items():
            self.say(f"[red]Failed: {count} × {kind}[/]")
        good = figures["goodput"]
        self.say(
            f"Answers that met the objective: {good['good']} of {good['judged']}, {good['per_s']} per second while requests were sent"
        )


def counts(recording: Recording) -> str:
    """Return the counts of answered, open and failed requests so far, as one line."""
    so_far = [sample.outcome for sample in recording.samples]
    failed = sum(sample.is_failure for sample in recording.samples) + so_far.count(NOT_STARTED)
    return f"{so_far.count(OK)} answered, {recording.in_flight} in progress, {failed} failed or not started"


def outcomes(requests: dict[str, Any]) -> str:
    names = ("due", "answered", "left", "failed", "not_started", "unfinished")
    return ", ".join(
        f"{requests[name]} {LABELS.get(name, name.replace('_', ' '))}" for name in names if requests[name]
    )
