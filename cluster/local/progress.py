"""Progress of long work: a live line on a terminal, a line every ten seconds in a log. Standard library
only.
"""

from __future__ import annotations

import shutil
import sys
import time

SAY_EVERY_S = 10.0
"""When nobody watches: a line this often."""


class Progress:
    """One phase."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.live = sys.stdout.isatty()
        self.started = self.said = time.monotonic()
        if not self.live:
            print(phase, flush=True)

    def show(self, text: str) -> None:
        """Show how far it is. Cheap: call it as often as you like."""
        elapsed_s = time.monotonic() - self.started
        line = f"{self.phase}  {text}  {elapsed_s:.0f} s"
        if self.live:
            print(f"\r\033[K{line[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
        elif time.monotonic() - self.said >= SAY_EVERY_S:
            self.said = time.monotonic()
            print(line, flush=True)

    def end(self) -> None:
        """Leave the line as it is: what comes next is an error message."""
        if self.live:
            print(flush=True)

    def finish(self, text: str = "done") -> None:
        """End the phase's line."""
        elapsed_s = time.monotonic() - self.started
        if self.live:
            print(f"\r\033[K\033[32m✓\033[0m {self.phase}: {text} ({elapsed_s:.0f} s)", flush=True)
        else:
            print(f"{self.phase}: {text} ({elapsed_s:.0f} s)", flush=True)
