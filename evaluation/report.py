"""Write the report of an evaluation as one self-contained HTML page and as JSON."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import jinja2

from evaluation.plots import is_bound, plots

TEMPLATE = "report.html.j2"


def write(folder: Path, figures: dict[str, Any]) -> Path:
    """Write `report.html` and `report.json`.

    Args:
        folder: the folder, which is created if it is missing.
        figures: the content of `report.json`: title, date, command, machine, questions, warnings, rows and
            comparisons.

    Returns:
        The path of the HTML page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(_plain(figures), indent=2) + "\n", encoding="utf-8")
    page = folder / "report.html"
    families = sorted({family for row in figures["rows"] for family in row["families"]})
    page.write_text(
        _template().render(figures, plots=plots(figures["rows"]), families=families), encoding="utf-8"
    )
    return page


def _plain(value: Any) -> Any:
    """Replace NaN and infinity with None, because JSON has neither."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in cast(dict[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in cast(Sequence[Any], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _template() -> jinja2.Template:
    environment: Any = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, percent=percent, seconds=seconds, usd=usd)
    environment.tests["bound"] = is_bound
    return environment.get_template(TEMPLATE)


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
