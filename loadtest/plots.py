"""The pictures of a report, as SVG to be put into a page. Knows samples and series, nothing of HTML."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.recording import LEFT, OK, PHASES, Sample
from loadtest.summary import critical_path_over_wall

Series = Mapping[str, Sequence[tuple[float, float]]]
COLOURS = {"plan": "#0072b2", "steps": "#e69f00", "first_token": "#009e73", "end": "#cc79a7"}
"""Okabe and Ito's, which colour-blind readers tell apart."""
STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3, "legend.frameon": False,
}  # fmt: skip


def plots(samples: Sequence[Sample], series: Series, ran_s: float) -> dict[str, str]:
    """Caption to SVG; a picture of which there is nothing to show is left out."""
    answered = [each for each in samples if each.outcome == OK]
    drawn = {
        "Answers no slower than, by phase": _drawn(distributions, answered) if answered else "",
        "Each answer over the run": _drawn(over_time, answered) if answered else "",
        "Requests a second": _drawn(rates, samples, ran_s) if samples else "",
        "Critical path over wall": _drawn(efficiency, answered) if _efficiencies(answered) else "",
        "Runs under way, as the server counts them": _drawn(
            stairs, {n: s for n, s in series.items() if not n.startswith("replicas")}
        ),
        "Replicas over the run": _drawn(
            stairs, {n: s for n, s in series.items() if n.startswith("replicas")}
        ),
    }
    return {caption: svg for caption, svg in drawn.items() if svg}


def _drawn(draw: Callable[..., None], *data: Any) -> str:
    if not any(data):
        return ""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.0), layout="constrained")
        draw(figure.add_subplot(), *data)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    text = written.getvalue()
    return text[text.index("<svg") :]


def distributions(axes: Axes, answered: Sequence[Sample]) -> None:
    """The part of answers that had come to a phase after so many seconds."""
    for phase in PHASES:
        values_s = sorted(
            each.phases_ms[phase] / 1000 for each in answered if phase in each.phases_ms
        )  # fmt: skip
        if values_s:
            axes.ecdf(values_s, label=phase.replace("_", " "), color=COLOURS[phase])
    axes.set(xlabel="seconds since the request was due", ylabel="part of answers", xlim=(0, None))
    axes.legend()


def over_time(axes: Axes, answered: Sequence[Sample]) -> None:
    """First token and end of each answer, by when it was due."""
    for phase in ("first_token", "end"):
        chosen = [each for each in answered if phase in each.phases_ms]
        due_s, took_s = [s.due_s for s in chosen], [s.phases_ms[phase] / 1000 for s in chosen]
        label = phase.replace("_", " ")
        axes.scatter(due_s, took_s, s=6, alpha=0.6, color=COLOURS[phase], label=label, rasterized=True)
    axes.set(xlabel="seconds since the run began", ylabel="seconds", xlim=(0, None), ylim=(0, None))
    axes.legend()


def rates(axes: Axes, samples: Sequence[Sample], ran_s: float) -> None:
    """What was due in each slice of the run, and what became of it."""
    slices = max(1, min(60, round(ran_s)))
    edges = [ran_s * edge / slices for edge in range(slices + 1)]
    kinds = {
        "answered": [s.due_s for s in samples if s.outcome == OK],
        "left": [s.due_s for s in samples if s.outcome == LEFT],
        "failed, not started or unfinished": [s.due_s for s in samples if s.outcome not in (OK, LEFT)],
    }
    colours = ["#009e73", "#56b4e9", "#d55e00"]
    weights = [[slices / ran_s] * len(due) for due in kinds.values()]
    axes.hist(
        list(kinds.values()), bins=edges, weights=weights, stacked=True, color=colours, label=list(kinds)
    )
    axes.set(xlabel="seconds since the run began, by when they were due", ylabel="requests a second")
    axes.legend()


def efficiency(axes: Axes, answered: Sequence[Sample]) -> None:
    """How many answers had which."""
    values = _efficiencies(answered)
    lowest = min(0.9, *values)
    axes.hist(values, bins=50, range=(lowest, 1.0), color="#0072b2")
    axes.set(
        xlabel="critical path over wall (1: no step waited needlessly)", ylabel="answers", xlim=(lowest, 1.0)
    )


def _efficiencies(answered: Sequence[Sample]) -> list[float]:
    return [value for each in answered if (value := critical_path_over_wall(each)) is not None]


def stairs(axes: Axes, series: Series) -> None:
    """Numbers that hold until the next look."""
    for name, points in series.items():
        axes.step([at_s for at_s, _ in points], [number for _, number in points], where="post", label=name)
    axes.set(xlabel="seconds since the run began", xlim=(0, None), ylim=(0, None))
    axes.legend()
