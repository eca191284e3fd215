"""The look of every plot, and how one becomes SVG or a file. Knows nothing of what is drawn."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

mpl: Any = matplotlib  # it ships partial types
BLUE, GREEN, GREY, ORANGE = "#0072b2", "#009e73", "#999999", "#e69f00"
PINK, SKY, RED = "#cc79a7", "#56b4e9", "#d55e00"
"""Okabe and Ito's, which colour-blind readers tell apart."""
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "podium",  # the same data make the same bytes
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
    """The picture that `draw(axes, *data)` makes, as an `<svg>` element; inches."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE):
        figure: Any = Figure(figsize=(width, height), layout="constrained")
        draw(figure.add_subplot(), *data)
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def save_plot(path: Path, draw: Callable[..., None], *data: Any, title: str = "") -> None:
    """Write the picture that `draw(axes, *data)` makes, in the format that `path` ends in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figure: Any = Figure(figsize=(6.4, 3.0), layout="constrained")
        axes = figure.add_subplot()
        draw(axes, *data)
        axes.set_title(title)
        figure.savefig(path, dpi=120)
