"""Common style of all plots, and their output as SVG or as a file."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

mpl: Any = matplotlib  # it ships partial types
BLUE, GREEN, GREY, ORANGE = "#0072b2", "#009e73", "#999999", "#e69f00"
PINK, SKY, RED = "#cc79a7", "#56b4e9", "#d55e00"
"""The palette of Okabe and Ito, which colour-blind readers can distinguish."""
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "podium",  # the same data always give the same bytes
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
}


def svg(draw: Callable[..., None], *data: Any, width: float = 6.4, height: float = 3.0) -> str:
    """Return the plot that `draw(axes, *data)` draws as an `<svg>` element. Sizes are in inches."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE):
        figure: Any = Figure(figsize=(width, height), layout="constrained")
        draw(figure.add_subplot(), *data)
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def save_plot(path: Path, draw: Callable[..., None], *data: Any, title: str = "") -> None:
    """Write the plot that `draw(axes, *data)` draws, in the format of `path`'s extension."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figure: Any = Figure(figsize=(6.4, 3.0), layout="constrained")
        axes = figure.add_subplot()
        draw(axes, *data)
        axes.set_title(title)
        figure.savefig(path, dpi=120)
