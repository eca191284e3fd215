"""Pictures of latency distributions, of autoscaling, and of what a rate costs. Knows numbers and names only."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # files only: no display is needed

from matplotlib import pyplot as plt
from matplotlib.figure import Figure


def distributions(samples: Mapping[str, Sequence[float]], title: str, axis: str, path: Path) -> None:
    """Cumulative shares, one line a name."""
    figure, axes = plt.subplots(figsize=(7, 4))
    for name, values in samples.items():
        ordered = sorted(values)
        shares = [(rank + 1) / len(ordered) for rank in range(len(ordered))]
        axes.step(ordered, shares, where="post", label=name.replace("_", "-"))
    axes.set(title=title, xlabel=axis, ylabel="share of plans", ylim=(0, 1))
    axes.legend()
    axes.grid(alpha=0.3)
    _saved(figure, path)


def scaling(
    seen: Sequence[tuple[float, int, int]], arrivals: Sequence[float], title: str, path: Path
) -> None:
    """Replicas over time, and the requests a second that came meanwhile."""
    figure, axes = plt.subplots(figsize=(7, 4))
    at_s = [each[0] for each in seen]
    axes.step(at_s, [each[1] for each in seen], where="post", label="replicas that serve")
    axes.step(at_s, [each[2] for each in seen], where="post", label="replicas paid for", linestyle="--")
    axes.set(title=title, xlabel="seconds", ylabel="replicas")
    axes.legend(loc="upper left")
    beside = axes.twinx()
    beside.hist(arrivals, bins=60, color="grey", alpha=0.25)
    beside.set_ylabel("requests, in a sixtieth of the time")
    _saved(figure, path)


def _saved(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
