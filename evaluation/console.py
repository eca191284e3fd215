"""Terminal output of an evaluation: a progress bar per strategy, and the table at the end."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from evaluation.report import number, percent, seconds, usd
from podium.command_line.terminal import console, progress, table

HEADS = ("accuracy, %", "± s.e.", "n", "US$ per question", "calls", "tokens", "time p50", "failed")


class Terminal:
    """Display of an evaluation. Progress bars go to standard error, so that the table can be piped."""

    def __init__(self) -> None:
        self.console = console(errors=True, markup=True)
        self._progress = progress(self.console, "accuracy")

    @contextmanager
    def progress(self) -> Generator[None]:
        """Show the progress bars while the block runs."""
        with self._progress:
            yield

    def begin(self, name: str, total: int) -> Callable[[bool | None], None]:
        task = self._progress.add_task(name, total=total, accuracy="")
        answered = correct = 0

        def advance(right: bool | None) -> None:
            nonlocal answered, correct
            answered, correct = answered + 1, correct + bool(right)
            self._progress.update(task, advance=1, accuracy=f"{100 * correct / answered:.1f} % right")

        return advance

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False)

    def table(self, rows: Sequence[dict[str, Any]]) -> None:
        """Print the main figures to standard output."""
        new_table = table("strategy", right=HEADS)
        for row in rows:
            prompt, completion = row["prompt_tokens"], row["completion_tokens"]
            new_table.add_row(
                row["strategy"],
                percent(row["accuracy"]["mean"]),
                percent(row["accuracy"]["standard_error"]),
                str(row["answered"]),
                usd(row["cost_usd"]),
                number(row["calls"]),
                number(None if prompt is None else prompt + (completion or 0)),
                seconds(row["wall_s"]["p50"]),
                str(sum(row["errors"].values())),
            )
        console().print(new_table)
