"""Whose work goes first."""

from typing import Literal

Priority = Literal["interactive", "batch"]
"""Somebody waits for the answer; or nobody does, and it may come later."""
