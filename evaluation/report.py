"""Write the report of an evaluation as one self-contained HTML page and as JSON."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from evaluation.plots import is_bound, plots
from podium.command_line.page import render

TEMPLATE = Path(__file__).with_name("report.html.j2")


def write(folder: Path, figures: dict[str, Any]) -> Path:
    """Write `report.html` and `report.json` (`figures`). Return the path of the HTML page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(_plain(figures), indent=2) + "\n", encoding="utf-8")
    page = folder / "report.html"
    families = sorted({family for row in figures["rows"] for family in row["families"]})
    bounds = [row["strategy"] for row in figures["rows"] if is_bound(row)]
    values = figures | {"plots": plots(figures["rows"]), "families": families, "bounds": bounds}
    text = render(TEMPLATE, values, number=number, percent=percent, seconds=seconds, usd=usd)
    page.write_text(text, encoding="utf-8")
    return page


def _plain(value: Any) -> Any:
    """Replace NaN and infinity with None, because JSON has neither."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in cast(dict[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in cast(Sequence[Any], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def number(value: float | None) -> str:
    """Format a number for the report. An unknown number is shown as a dash."""
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(value: float | None) -> str:
    """Format a share (0 to 1) as percent with one decimal."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.1f}"


def seconds(value: float | None) -> str:
    """Format seconds, as milliseconds below 1 s."""
    return "–" if value is None else f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"


def usd(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"
