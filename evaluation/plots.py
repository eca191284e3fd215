"""Draw the plots of a report as inline SVG, from its rows."""
# The types of matplotlib are partial.
# pyright: reportUnknownMemberType=false

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from evaluation.statistics import pareto
from podium.command_line.plots import BLUE, GREEN, GREY, ORANGE, svg

Row = dict[str, Any]
BOUNDS = ("oracle", "best_of_n_oracle")
"""Strategies that know the right answers. They are upper bounds, so the Pareto front excludes them."""


def plots(rows: Sequence[Row]) -> dict[str, str]:
    """Return the SVG of each plot by caption. Plots without data are omitted."""
    rows = [row for row in rows if row["answered"]]
    priced = [row for row in rows if row["cost_usd"] is not None]
    metered = [row for row in rows if row["prompt_tokens"] is not None]
    counted = [row for row in rows if row["calls"] is not None]
    differing = counted if len({row["calls"] for row in counted}) > 1 else []
    costs, calls = partial(accuracy_over, field="cost_usd", unit="US$"), partial(accuracy_over, field="calls")
    height = 1.0 + 0.24 * len(rows)
    figures = {
        "Accuracy over cost, with the Pareto front": _svg(costs, priced, 5.0),
        "Accuracy over calls per question": _svg(calls, differing, 5.0),
        "Accuracy, with its 95 % interval": _svg(accuracies, rows, height),
        "Steps and calls per question": _svg(steps_and_calls, counted, height),
        "Tokens per question": _svg(tokens, metered, height),
    }
    return {caption: picture for caption, picture in figures.items() if picture}


def _svg(draw: Callable[[Axes, Sequence[Row]], None], rows: Sequence[Row], height: float) -> str:
    return svg(draw, rows, width=7.2, height=height) if rows else ""


def accuracy_over(axes: Axes, rows: Sequence[Row], field: str, unit: str = "") -> None:
    """Plot accuracy over the mean of `field`, with the Pareto front without upper bounds."""
    x, y = [row[field] for row in rows], [row["accuracy"]["mean"] for row in rows]
    usable = [i for i, row in enumerate(rows) if not is_bound(row)]
    front = [usable[i] for i in pareto([(x[i], y[i]) for i in usable])]
    for i, row in enumerate(rows):
        colour = GREY if is_bound(row) else GREEN if i in front else BLUE
        error = row["accuracy"]["standard_error"]
        axes.errorbar(x[i], y[i], yerr=error, fmt="o", ms=4, color=colour, elinewidth=0.8)
    _label(axes, [row["strategy"].removeprefix("single:") for row in rows], x, y)
    axes.step([x[i] for i in front], [y[i] for i in front], where="post", color=GREEN, lw=1, label="front")
    axes.legend(loc="lower right")
    axes.set(xlabel=f"{unit or field} per question", ylabel="accuracy")


def _label(axes: Axes, names: Sequence[str], x: Sequence[float], y: Sequence[float]) -> None:
    """Label each point. If two labels would overlap, the higher one moves up."""
    (x_min, x_max), (y_min, y_max) = axes.get_xlim(), axes.get_ylim()
    positions: list[tuple[float, float]] = []
    for i in sorted(range(len(names)), key=y.__getitem__):
        across, up = (x[i] - x_min) / (x_max - x_min), (y[i] - y_min) / (y_max - y_min) + 0.008
        while any(abs(up - there) < 0.024 and abs(across - other) < 0.3 for other, there in positions):
            up += 0.008
        positions.append((across, up))
        axes.annotate(names[i], (across + 0.012, up), xycoords="axes fraction", fontsize=6.5)


def accuracies(axes: Axes, rows: Sequence[Row]) -> None:
    """Plot accuracies as bars with Wilson's interval."""
    intervals = [row["accuracy"] for row in rows]
    means = [each["mean"] for each in intervals]
    below = [max(0.0, each["mean"] - each["low"]) for each in intervals]
    above = [max(0.0, each["high"] - each["mean"]) for each in intervals]
    colours = [GREY if is_bound(row) else BLUE for row in rows]
    axes.barh(_names(rows), means, xerr=[below, above], color=colours, error_kw={"elinewidth": 0.8})
    axes.invert_yaxis()
    axes.set(xlabel="accuracy", xlim=(0, 1))


def steps_and_calls(axes: Axes, rows: Sequence[Row]) -> None:
    """Plot steps and calls as bars side by side."""
    for shift, field, colour in ((-0.2, "steps", BLUE), (0.2, "calls", ORANGE)):
        places, values = [i + shift for i in range(len(rows))], [row[field] for row in rows]
        axes.barh(places, values, 0.38, color=colour, label=field)
    axes.set_yticks(range(len(rows)), _names(rows))
    _finish_bars(axes, "per question")


def tokens(axes: Axes, rows: Sequence[Row]) -> None:
    """Plot prompt and completion tokens as stacked bars."""
    prompt, completion = ([row[f"{kind}_tokens"] for row in rows] for kind in ("prompt", "completion"))
    axes.barh(_names(rows), prompt, color=BLUE, label="prompt")
    axes.barh(_names(rows), completion, left=prompt, color=ORANGE, label="completion")
    _finish_bars(axes, "tokens per question")


def _finish_bars(axes: Axes, xlabel: str) -> None:
    axes.invert_yaxis()
    axes.set(xlabel=xlabel)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def _names(rows: Sequence[Row]) -> list[str]:
    return [row["strategy"] for row in rows]


def is_bound(row: Row) -> bool:
    """Return whether the strategy knows the right answers."""
    return row["strategy"].partition("?")[0].partition(":")[0] in BOUNDS
