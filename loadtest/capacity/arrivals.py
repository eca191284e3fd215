"""Arrival times of requests: seconds from the start, ascending. Knows nothing of their content."""

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
    """Sample Poisson traffic at `share` of `rate_rps` in each of equal intervals
    (Lewis and Shedler, 1979).
    """
    times = poisson(rate_rps, duration_s, rng)
    piece = np.minimum((times / duration_s * len(share)).astype(int), len(share) - 1)
    return times[rng.uniform(size=len(times)) < share[piece]]


def diurnal(rate_rps: float, duration_s: float, rng: np.random.Generator) -> Times:
    """Sample a day compressed into `duration_s`. The peak is `rate_rps`, the minimum a fifth of it."""
    phase = np.linspace(0, 2 * np.pi, 96, endpoint=False)
    return thin(rate_rps, 0.6 - 0.4 * np.cos(phase), duration_s, rng)


def burst(rate_rps: float, duration_s: float, rng: np.random.Generator) -> Times:
    """Sample traffic at `rate_rps` in the middle fifth, and at a third of it before and after."""
    share = np.full(15, 1 / 3)
    share[6:9] = 1
    return thin(rate_rps, share, duration_s, rng)


def traffic(kind: str, rate_rps: float, duration_s: float, rng: np.random.Generator) -> Times:
    """Sample traffic of a kind, or read a trace if `kind` names a file.

    Raises:
        InputsError: `kind` is neither a known kind nor a valid trace file.
    """
    if kind in KINDS:
        return {"poisson": poisson, "diurnal": diurnal, "burst": burst}[kind](rate_rps, duration_s, rng)
    return from_csv(Path(kind))


def from_csv(path: Path) -> Times:
    """Read a trace: a column `arrival_s`, in seconds.

    Raises:
        InputsError: the file or the column does not exist, or a value is not a number of at least 0.
    """
    if not path.is_file():
        kinds = f"{', '.join(KINDS)}, or a CSV file with a column `arrival_s`"
        raise InputsError(f"unknown traffic {str(path)!r}. Use {kinds}.")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        times = np.sort(np.array([float(row["arrival_s"]) for row in rows]))
    except (KeyError, TypeError, ValueError) as exc:
        raise InputsError(f"{path}: every line needs a number of seconds in a column `arrival_s`") from exc
    if not len(times) or not np.isfinite(times).all() or times[0] < 0:
        raise InputsError(f"{path}: `arrival_s` needs at least one value, and no value below 0")
    return times
