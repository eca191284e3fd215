"""When requests arrive: seconds from the start, ascending. Knows nothing of their content."""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadtest.capacity.inputs import InputsError

Times = NDArray[np.float64]
KINDS = ("poisson", "diurnal", "burst")


def poisson(rate_rps: float, duration_s: float, rng: np.random.Generator) -> Times:
    """Open-loop traffic: a Poisson number of requests, at uniform times."""
    return np.sort(rng.uniform(0, duration_s, rng.poisson(rate_rps * duration_s)))


def thin(rate_rps: float, share: NDArray[np.float64], duration_s: float, rng: np.random.Generator) -> Times:
    """Poisson traffic at `share` of `rate_rps` in each of equal intervals (Lewis and Shedler, 1979)."""
    times = poisson(rate_rps, duration_s, rng)
    piece = np.minimum((times / duration_s * len(share)).astype(int), len(share) - 1)
    return times[rng.uniform(size=len(times)) < share[piece]]


def diurnal(rate_rps: float, duration_s: float, rng: np.random.Generator) -> Times:
    """A day in `duration_s`: the peak is `rate_rps`, the night a fifth of it."""
    phase = np.linspace(0, 2 * np.pi, 96, endpoint=False)
    return thin(rate_rps, 0.6 - 0.4 * np.cos(phase), duration_s, rng)


def burst(rate_rps: float, duration_s: float, rng: np.random.Generator) -> Times:
    """`rate_rps` in the middle fifth, a third of it before and after."""
    share = np.full(15, 1 / 3)
    share[6:9] = 1
    return thin(rate_rps, share, duration_s, rng)


def traffic(kind: str, rate_rps: float, duration_s: float, rng: np.random.Generator) -> Times:
    """Traffic of a kind, or of a trace where `kind` names a file.

    Raises:
        InputsError: neither.
    """
    if kind in KINDS:
        return {"poisson": poisson, "diurnal": diurnal, "burst": burst}[kind](rate_rps, duration_s, rng)
    return from_csv(Path(kind))


def from_csv(path: Path) -> Times:
    """A trace: a column `arrival_s`, in seconds.

    Raises:
        InputsError: the file or the column does not exist, or a value is not a number from 0 on.
    """
    if not path.is_file():
        kinds = f"{', '.join(KINDS)}, or a CSV file with a column `arrival_s`"
        raise InputsError(f"no traffic is called {str(path)!r}: {kinds}")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        times = np.sort(np.array([float(row["arrival_s"]) for row in rows]))
    except (KeyError, TypeError, ValueError) as exc:
        raise InputsError(f"{path}: every line needs a number of seconds in a column `arrival_s`") from exc
    if not len(times) or not np.isfinite(times).all() or times[0] < 0:
        raise InputsError(f"{path}: `arrival_s` must hold seconds from 0 on, and at least one")
    return times
