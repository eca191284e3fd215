"""Objective that a good answer must meet, such as `first_token=2s,end=30s`: parsing and evaluation."""

import math
import re
from collections.abc import Mapping

from loadtest.recording import OK, PHASES, Sample

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Parse `500ms`, `60s`, `10m`, `1h` or a number of seconds. Raise ValueError unless it is above 0."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", text.strip())
    value = float(match[1]) * UNITS_S[match[2] or "s"] if match else 0.0
    if not 0 < value < math.inf:
        raise ValueError(f"{text!r} is not a duration. Use a value such as 500ms, 60s, 10m or 1h.")
    return value


def parse_objective(text: str) -> dict[str, float]:
    """Parse an objective into the limit of each phase in milliseconds. Raise ValueError if it is invalid."""
    limits_ms: dict[str, float] = {}
    for part in text.split(","):
        phase, _, limit = part.partition("=")
        if phase.strip() not in PHASES:
            raise ValueError(f"unknown phase {phase!r}. Choose from {', '.join(PHASES)}.")
        limits_ms[phase.strip()] = parse_duration(limit) * 1000
    return limits_ms


def is_good(sample: Sample, limits_ms: Mapping[str, float]) -> bool:
    """Return whether the request was answered and each phase that it has ended within its limit."""
    return sample.outcome == OK and all(
        sample.phases_ms[phase] <= limit_ms
        for phase, limit_ms in limits_ms.items()
        if phase in sample.phases_ms
    )
