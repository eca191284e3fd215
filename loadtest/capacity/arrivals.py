"""Arrival times of requests, in seconds from the start and in ascending order."""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadtest.capacity.inputs import InputsError

Times = NDArray[np.float64]
KINDS = ("poisson", "diurnal", "burst")


def poisson(rate_rps: float, duration_s: float, rng: np.random.Generator) -> Times:
    """Sample open-loop traffic: a Poisson number of requests, at uniform times."""
    return np.sort(rng.uniform(0, duration_s, rng.poisson(rate_rps * duration_s)))


def thin(rate_rps: float, share: NDArray[np.float64], duration_s: float, rng: np.random.Generator) -> Times:
    """Draw Poisson traffic by thinning (Lewis and Shedler, 1979). `share` has the rate of equal intervals."""
    times = poisson(rate_rps, duration_s, rng)
    piece = np.minimum((times / duration_s * len(share)).astype(int), len(share) - 1)
    return times[rng.uniform(size=len(times)) < share[piece]]


def diurnal(rate_rps: float, duration_s: float, rng: np.random.Generator) -> Times:
    """Draw a day's traffic, compressed into `duration_s`: peak `rate_rps`, minimum a fifth of it."""
    phase = np.linspace(0, 2 * np.pi, 96, endpoint=False)
    return thin(rate_rps, 0.6 - 0.4 * np.cos(phase), duration_s, rng)


def burst(rate_rps: float, duration_s: float, rng: np.random.Generator) -> Times:
    """Draw traffic at `rate_rps` in the middle fifth of the time, and at a third of it otherwise."""
    share = np.full(15, 1 / 3)
    share[6:9] = 1
    return thin(rate_rps, share, duration_s, rng)


def traffic(kind: str, rate_rps: float, duration_s: float, rng: np.random.Generator) -> Times:
    """Draw traffic of the given kind, or read a trace if `kind` is the name of a file."""
    if kind in KINDS:
        return {"poisson": poisson, "diurnal": diurnal, "burst": burst}[kind](rate_rps, duration_s, rng)
    return from_csv(Path(kind))


def from_csv(path: Path) -> Times:
    """Read a trace from a CSV file with a column `arrival_s`, in seconds. Raise InputsError if it is invalid."""
    if not path.is_file():
        kinds = f"{', '.join(KINDS)}, or a CSV file with a column `arrival_s`"
        raise InputsError(f"--traffic: unknown traffic {str(path)!r}. Choose from {kinds}.")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        times = np.sort(np.array([float(row["arrival_s"]) for row in rows]))
    except (KeyError, TypeError, ValueError) as exc:
        raise InputsError(
            f"{path}: each line must have a number of seconds in the column `arrival_s`."
        ) from exc
    if not len(times) or not np.isfinite(times).all() or times[0] < 0:
        raise InputsError(
            f"{path}: the column `arrival_s` must have at least one value, and all values must be at least 0."
        )
    return times
