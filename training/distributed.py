"""Which of the processes that train together this one is, as torchrun, accelerate and Ray Train say it. Imports nothing heavy."""

import os


def processes() -> int:
    """On how many devices this run is, one process each."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def leads() -> bool:
    """Whether this process is the first of them, which alone writes."""
    return os.environ.get("RANK", "0") == "0"
