"""Writes a run's figures as a page that needs nothing beside itself, and as JSON. Knows files, not how figures are made."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2

from loadtest.plots import Series, plots
from loadtest.recording import PHASES, Sample

TEMPLATE = "report.html.j2"


def write(folder: Path, told: dict[str, Any], samples: list[Sample], series: Series) -> Path:
    """Write `report.html`, `report.json` and `requests.jsonl`.

    Args:
        folder: made if it is not there.
        told: title, date, command, machine and figures: all that `report.json` holds.
        samples: one line each.
        series: what the server told over time.

    Returns:
        The page.

    Raises:
        OSError: `folder` cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "requests.jsonl").open("w") as lines:  # first: all else follows from it
        lines.writelines(json.dumps(asdict(sample)) + "\n" for sample in samples)
    (folder / "report.json").write_text(json.dumps(told | {"server_state": series}, indent=2) + "\n")
    pictures = plots(samples, series, told["figures"]["ran_s"])
    page = folder / "report.html"
    page.write_text(_template().render(told, plots=pictures, PHASES=PHASES))
    return page


def check_writable(folder: Path) -> None:
    """Make `folder`, and try to write there: known before an hour of load, not after it.

    Raises:
        OSError: that cannot be done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(b"podium")


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(ms=_ms, number=_number)
    return environment.get_template(TEMPLATE)


def _ms(value: float | None) -> str:
    """Milliseconds as a person reads them."""
    if value is None:
        return "–"
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.3g} ms"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}" if value < 10_000 else f"{value:,.0f}"
