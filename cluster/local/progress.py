"""Progress of long work: a live line on a terminal, or a line every ten seconds in a log.

Standard library only.
"""

from __future__ import annotations

import shutil
import sys
import time

SAY_EVERY_S = 10.0
"""Seconds between two lines if the output is not a terminal."""


class Progress:
    """Progress of one phase."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.live = sys.stdout.isatty()
        self.started = self.printed_at = time.monotonic()
        if not self.live:
            print(phase, flush=True)

    def show(self, text: str) -> None:
        """Show the state of the phase. Cheap enough to call often."""
        elapsed_s = time.monotonic() - self.started
        line = f"{self.phase}  {text}  {elapsed_s:.0f} s"
        if self.live:
            print(f"\r\033[K{line[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
        elif time.monotonic() - self.printed_at >= SAY_EVERY_S:
            self.printed_at = time.monotonic()
            print(line, flush=True)

    def end(self) -> None:
        """End the live line, because an error message follows."""
        if self.live:
            print(flush=True)

    def finish(self, text: str = "done") -> None:
        """Replace the phase's line by its result."""
        elapsed_s = time.monotonic() - self.started
        if self.live:
            print(f"\r\033[K\033[32m✓\033[0m {self.phase}: {text} ({elapsed_s:.0f} s)", flush=True)
        else:
            print(f"{self.phase}: {text} ({elapsed_s:.0f} s)", flush=True)
