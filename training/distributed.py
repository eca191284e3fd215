"""Rank and number of the processes that train together, as set by torchrun, accelerate and Ray Train."""

import os


def world_size() -> int:
    """Return the number of processes that train together, one per device."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Return whether this is the first process, the only one that writes."""
    return os.environ.get("RANK", "0") == "0"
