"""This process among those that train together, as torchrun, accelerate and Ray Train tell it."""

import os


def world_size() -> int:
    """How many processes train together, one a device."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this is the first of them, the only one that writes."""
    return os.environ.get("RANK", "0") == "0"
