"""The silences between the words of one answer."""

from dataclasses import dataclass


@dataclass(slots=True)
class Pauses:
    """Those of one call. Its worker ends it where one is too long, and writes down the longest."""

    limit_s: float | None = None
    """A longer one is not usual for this worker, and another one can go on with the answer. None: the settings say
    how long."""
    longest_s: float | None = None
    """Of those that have ended; None until there are two words, and where nobody measures."""

    def note(self, pause_s: float) -> None:
        """One has ended."""
        self.longest_s = max(pause_s, self.longest_s or 0.0)
