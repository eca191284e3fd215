"""What the terminal shows of an evaluation: a bar a strategy, and the table at the end. Goes to standard error and output."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from evaluation.report import number, percent, seconds, usd


class Terminal:
    """Bars on standard error, so that output can be piped."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, soft_wrap=True)
        self._progress: Progress | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Bars live in the block."""
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[told]}"),
        )  # fmt: skip
        with Progress(*columns, console=self.console) as self._progress:
            yield

    def begin(self, name: str, total: int) -> Callable[[bool | None], None]:
        """See `evaluation.run.Show`."""
        progress = self._progress
        if progress is None:
            return lambda _: None
        task = progress.add_task(name, total=total, told="")
        counted = [0, 0]

        def advance(right: bool | None) -> None:
            counted[0] += 1
            counted[1] += bool(right)
            progress.update(task, advance=1, told=f"{100 * counted[1] / counted[0]:.1f} % right")

        return advance

    def say(self, text: str) -> None:
        """See `evaluation.run.Show`."""
        self.console.print(text, highlight=False, markup=False)

    def table(self, rows: Sequence[dict[str, Any]]) -> None:
        """The figures that matter most."""
        heads = ("accuracy, %", "± s.e.", "n", "US$ each", "calls", "tokens", "wall p50", "failed")
        drawn = Table(Column("strategy", no_wrap=True), *heads)
        for row in rows:
            tokens = (
                None
                if row["prompt_tokens"] is None
                else row["prompt_tokens"] + (row["completion_tokens"] or 0)
            )
            drawn.add_row(
                row["strategy"], percent(row["accuracy"]["mean"]), percent(row["accuracy"]["standard_error"]),
                str(row["answered"]), usd(row["cost_usd"]), number(row["calls"]), number(tokens),
                seconds(row["wall_s"]["p50"]), str(sum(row["errors"].values())),
            )  # fmt: skip
        console = Console()
        if not console.is_terminal:
            console.width = 140  # a file is as wide as it is long
        console.print(drawn)
