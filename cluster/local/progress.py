"""Progress of long work: a line that is updated on a terminal, or a new line every ten seconds in a log.

This module imports only the standard library.
"""

from __future__ import annotations

import shutil
import sys
import time

SAY_EVERY_S = 10.0
"""Seconds between two progress lines if the output is not a terminal."""


class Progress:
    """Progress of one phase of the work, such as a command of set-up."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.live = sys.stdout.isatty()
        self.started = self.printed_at = time.monotonic()
        if not self.live:
            print(phase, flush=True)

    def show(self, text: str) -> None:
        """Show the current state of the phase. This is cheap and may be called often."""
        elapsed_s = time.monotonic() - self.started
        line = f"{self.phase}  {text}  {elapsed_s:.0f} s"
        if self.live:
            print(f"\r\033[K{line[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
        elif time.monotonic() - self.printed_at >= SAY_EVERY_S:
            self.printed_at = time.monotonic()
            print(line, flush=True)

    def end(self) -> None:
        """End the progress line, so that an error message can follow."""
        if self.live:
            print(flush=True)

    def finish(self, text: str = "done") -> None:
        """Replace the progress line by the result of the phase."""
        elapsed_s = time.monotonic() - self.started
        if self.live:
            print(f"\r\033[K\033[32m✓\033[0m {self.phase}: {text} ({elapsed_s:.0f} s)", flush=True)
        else:
            print(f"{self.phase}: {text} ({elapsed_s:.0f} s)", flush=True)
