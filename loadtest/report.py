"""Write the figures of a run as a self-contained HTML page and as JSON."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest.plots import Series, report_plots
from loadtest.recording import PHASES, Sample
from podium.command_line.page import render

TEMPLATE = Path(__file__).with_name("report.html.j2")


def write(folder: Path, content: dict[str, Any], samples: list[Sample], series: Series) -> Path:
    """Write `report.html`, `report.json` (`content`) and `requests.jsonl`. Return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "requests.jsonl").open("w") as lines:  # first, because the rest can be computed from it
        lines.writelines(json.dumps(asdict(sample)) + "\n" for sample in samples)
    (folder / "report.json").write_text(json.dumps(content | {"server_state": series}, indent=2) + "\n")
    plots = report_plots(samples, series, content["figures"]["ran_s"])
    page = folder / "report.html"
    values = content | {"plots": plots, "PHASES": PHASES}
    page.write_text(render(TEMPLATE, values, ms=_ms, number=_number))
    return page


def check_writable(folder: Path) -> None:
    """Create `folder` and check that it is writable, before the load. Raise OSError if not."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(b"podium")


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.3g} ms"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}" if value < 10_000 else f"{value:,.0f}"
