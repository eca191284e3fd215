"""Plots of load tests, the bench and the capacity simulation."""

from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.recording import LEFT, OK, PHASES, Sample
from loadtest.summary import critical_path_over_wall
from podium.command_line.plots import BLUE, GREEN, ORANGE, PINK, RED, SKY, svg

Axes = Any  # matplotlib ships partial types
Series = Mapping[str, Sequence[tuple[float, float]]]
COLOURS = {"plan": BLUE, "steps": ORANGE, "first_token": GREEN, "end": PINK}


def report_plots(samples: Sequence[Sample], series: Series, ran_s: float) -> dict[str, str]:
    """Return the plots as SVG by caption. Plots without data are omitted."""
    answered = [each for each in samples if each.outcome == OK]
    ratios = [ratio for each in answered if (ratio := critical_path_over_wall(each)) is not None]
    replicas = {name: points for name, points in series.items() if name.startswith("replicas")}
    others = {name: points for name, points in series.items() if name not in replicas}
    pictures = {
        "Share of answers by latency, per phase": answered and svg(plot_phases, answered),
        "Answers over the run": answered and svg(plot_answers, answered),
        "Requests per second": samples and svg(plot_rates, samples, ran_s),
        "Critical path divided by wall time": ratios and svg(plot_ratios, ratios),
        "Active runs, as counted by the server": others and svg(plot_series, others),
        "Replicas over the run": replicas and svg(plot_series, replicas),
    }
    return {caption: str(picture) for caption, picture in pictures.items() if picture}


def plot_phases(axes: Axes, answered: Sequence[Sample]) -> None:
    """Plot the share of answers that had reached the end of each phase, over seconds."""
    for phase in PHASES:
        values_s = sorted(each.phases_ms[phase] / 1000 for each in answered if phase in each.phases_ms)
        if values_s:
            axes.ecdf(values_s, label=phase.replace("_", " "), color=COLOURS[phase])
    axes.set(xlabel="seconds since the request was due", ylabel="share of answers", xlim=(0, None))
    axes.legend()


def plot_answers(axes: Axes, answered: Sequence[Sample]) -> None:
    """Plot the first token and the end of each answer, over the time at which its request was due."""
    for phase in ("first_token", "end"):
        chosen = [each for each in answered if phase in each.phases_ms]
        due_s, durations_s = [s.due_s for s in chosen], [s.phases_ms[phase] / 1000 for s in chosen]
        label = phase.replace("_", " ")
        axes.scatter(due_s, durations_s, s=6, alpha=0.6, color=COLOURS[phase], label=label, rasterized=True)
    axes.set(xlabel="seconds since the start of the run", ylabel="seconds", xlim=(0, None), ylim=(0, None))
    axes.legend()


def plot_rates(axes: Axes, samples: Sequence[Sample], ran_s: float) -> None:
    """Plot the requests that were due in each slice of the run, by outcome."""
    slices = max(1, min(60, round(ran_s)))
    edges = [ran_s * edge / slices for edge in range(slices + 1)]
    due_s = {
        "answered": [s.due_s for s in samples if s.outcome == OK],
        "left": [s.due_s for s in samples if s.outcome == LEFT],
        "failed, not started or unfinished": [s.due_s for s in samples if s.outcome not in (OK, LEFT)],
    }
    weights = [[slices / ran_s] * len(each) for each in due_s.values()]
    colours = [GREEN, SKY, RED]
    axes.hist(
        list(due_s.values()), bins=edges, weights=weights, stacked=True, color=colours, label=list(due_s)
    )
    axes.set(xlabel="due time, in seconds since the start of the run", ylabel="requests per second")
    axes.legend()


def plot_ratios(axes: Axes, ratios: Sequence[float]) -> None:
    """Plot a histogram of the ratio of critical path to wall time."""
    lowest = min(0.9, *ratios)
    axes.hist(ratios, bins=50, range=(lowest, 1.0), color=BLUE)
    label = "critical path divided by wall time (1: no step waited unnecessarily)"
    axes.set(xlabel=label, ylabel="answers", xlim=(lowest, 1.0))


def plot_series(axes: Axes, series: Series) -> None:
    """Plot series of numbers. Each number holds until the next sample."""
    for name, points in series.items():
        axes.step([at_s for at_s, _ in points], [number for _, number in points], where="post", label=name)
    axes.set(xlabel="seconds since the start of the run", xlim=(0, None), ylim=(0, None))
    axes.legend()


def plot_distributions(axes: Axes, samples: Mapping[str, Sequence[float]]) -> None:
    """Plot cumulative distributions of seconds, one line per name."""
    for name, values_s in samples.items():
        axes.ecdf(values_s, label=name.replace("_", "-"))
    axes.set(xlabel="seconds to the end of the answer", ylabel="share of plans", ylim=(0, 1))
    axes.legend()


def plot_autoscaling(axes: Axes, snapshots: Sequence[tuple[float, float, int, int]]) -> None:
    """Plot active streams or requests, replicas that serve, and replicas that exist, over seconds."""
    at_s, load, serving, existing = zip(*snapshots, strict=True)
    load_axes = axes.twinx()
    load_axes.fill_between(at_s, load, step="post", color=SKY, alpha=0.4)
    load_axes.set(ylabel="active requests (area)", ylim=(0, None))
    load_axes.grid(visible=False)
    axes.step(at_s, serving, where="post", color=RED, label="replicas up")
    label = "including starting and draining ones"
    axes.step(at_s, existing, where="post", color=RED, linestyle=":", label=label)
    axes.set(xlabel="seconds", ylabel="replicas", ylim=(0, None))
    axes.legend(loc="upper left")
