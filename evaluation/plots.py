"""The plots of a report, as inline SVG. Knows a report's rows, nothing of HTML."""
# The types of matplotlib are partial.
# pyright: reportUnknownMemberType=false

import io
from collections.abc import Callable, Sequence
from typing import Any, cast

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evaluation.statistics import pareto

Row = dict[str, Any]
BLUE, GREEN, GREY, ORANGE = "#0072b2", "#009e73", "#999999", "#e69f00"
"""Okabe and Ito's, which colour-blind readers tell apart."""
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "podium",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
}
BOUNDS = ("oracle", "best_of_n_oracle")
"""Bounds, not usable strategies: they know the right answers, so the front leaves them out."""


def plots(rows: Sequence[Row]) -> dict[str, str]:
    """Caption to SVG; plots without data are left out."""
    rows = [row for row in rows if row["answered"]]
    priced = [row for row in rows if row["cost_usd"] is not None]
    metered = [row for row in rows if row["prompt_tokens"] is not None]
    height = 1.0 + 0.24 * len(rows)
    figures = {
        "Accuracy over cost, with the front that no other strategy beats": _svg(costs, priced, 5.0),
        "Accuracy over calls a question": _svg(
            calls, rows if len({row["calls"] for row in rows}) > 1 else [], 5.0
        ),
        "Accuracy, with its 95 % interval": _svg(accuracies, rows, height),
        "Steps and calls a question": _svg(steps, rows, height),
        "Tokens a question": _svg(tokens, metered, height),
    }
    return {caption: svg for caption, svg in figures.items() if svg}


def _svg(draw: Callable[[Axes, Sequence[Row]], None], rows: Sequence[Row], height: float) -> str:
    if not rows:
        return ""
    with mpl.rc_context(cast(Any, STYLE)):
        figure = Figure(figsize=(7.2, height), layout="constrained")
        draw(figure.add_subplot(), rows)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def costs(axes: Axes, rows: Sequence[Row]) -> None:
    """Each strategy by its mean cost; the front joins the usable ones that none beats."""
    _over(axes, rows, [row["cost_usd"] for row in rows])
    axes.set(xlabel="US$ a question", ylabel="accuracy")


def calls(axes: Axes, rows: Sequence[Row]) -> None:
    """The same over calls to models, which are known where costs are not."""
    _over(axes, rows, [row["calls"] for row in rows])
    axes.set(xlabel="calls a question", ylabel="accuracy")


def _over(axes: Axes, rows: Sequence[Row], across: Sequence[float]) -> None:
    up = [row["accuracy"]["mean"] for row in rows]
    usable = [i for i, row in enumerate(rows) if not is_bound(row)]
    front = [usable[i] for i in pareto([(across[i], up[i]) for i in usable])]
    for i, row in enumerate(rows):
        colour = GREY if is_bound(row) else GREEN if i in front else BLUE
        axes.errorbar(
            across[i],
            up[i],
            yerr=row["accuracy"]["standard_error"],
            fmt="o",
            ms=4,
            color=colour,
            elinewidth=0.8,
        )
    _label(axes, [row["strategy"].removeprefix("single:") for row in rows], across, up)
    axes.step(
        [across[i] for i in front], [up[i] for i in front], where="post", color=GREEN, lw=1, label="front"
    )
    axes.legend(loc="lower right")


def _label(axes: Axes, names: Sequence[str], across: Sequence[float], up: Sequence[float]) -> None:
    """A name beside each point; where two would overlap, the higher one moves up."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    taken: list[tuple[float, float]] = []
    for i in sorted(range(len(names)), key=lambda i: up[i]):
        x, y = (across[i] - left) / (right - left), (up[i] - bottom) / (top - bottom) + 0.008
        while any(abs(y - there) < 0.024 and abs(x - other) < 0.3 for other, there in taken):
            y += 0.008
        taken.append((x, y))
        axes.annotate(names[i], (x + 0.012, y), xycoords="axes fraction", fontsize=6.5)


def accuracies(axes: Axes, rows: Sequence[Row]) -> None:
    """Bars with Wilson's interval."""
    held = [row["accuracy"] for row in rows]
    means = [each["mean"] for each in held]
    below = [max(0.0, each["mean"] - each["low"]) for each in held]
    above = [max(0.0, each["high"] - each["mean"]) for each in held]
    colours = [GREY if is_bound(row) else BLUE for row in rows]
    axes.barh(_names(rows), means, xerr=[below, above], color=colours, error_kw={"elinewidth": 0.8})
    axes.invert_yaxis()
    axes.set(xlabel="accuracy", xlim=(0, 1))


def steps(axes: Axes, rows: Sequence[Row]) -> None:
    """Side by side."""
    _pairs(axes, rows, ("steps", "calls"))
    axes.set(xlabel="a question")


def tokens(axes: Axes, rows: Sequence[Row]) -> None:
    """Read and written, on top of one another."""
    read, wrote = [row["prompt_tokens"] for row in rows], [row["completion_tokens"] for row in rows]
    axes.barh(_names(rows), read, color=BLUE, label="prompt")
    axes.barh(_names(rows), wrote, left=read, color=ORANGE, label="completion")
    axes.invert_yaxis()
    axes.set(xlabel="tokens a question")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def _pairs(axes: Axes, rows: Sequence[Row], fields: tuple[str, str]) -> None:
    for shift, field, colour in ((-0.2, fields[0], BLUE), (0.2, fields[1], ORANGE)):
        axes.barh(
            [i + shift for i in range(len(rows))],
            [row[field] or 0 for row in rows],
            0.38,
            color=colour,
            label=field,
        )
    axes.set_yticks(range(len(rows)), _names(rows))
    axes.invert_yaxis()
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def _names(rows: Sequence[Row]) -> list[str]:
    return [row["strategy"] for row in rows]


def is_bound(row: Row) -> bool:
    """Whether it knows the right answers."""
    return row["strategy"].partition("?")[0].partition(":")[0] in BOUNDS
