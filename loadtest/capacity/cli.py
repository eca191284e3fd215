"""Estimate how many replicas, GPUs and dollars each request rate needs, and how long users wait.

Prints tables, and writes build/simulator/simulator.json. The simulation takes a few minutes on a slow core. The exit code is 2 if the inputs are invalid.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table
from typer import Option

from loadtest.capacity import inputs, report, validation, whatif
from loadtest.capacity.arrivals import KINDS
from loadtest.capacity.inputs import Inputs, InputsError
from loadtest.capacity.sizing import Requirements
from podium.command_line.options import parse_rates
from podium.command_line.process import restore_interrupts
from podium.command_line.program import CommandError, Program
from podium.command_line.terminal import console as open_console
from podium.command_line.terminal import table

SLICE_CHECKED_AT = 2.5
"""Rate at which a slice of the traffic is compared with the whole, as a multiple of the slice's rate."""
CHECKED_RPS = 10
CHANGED_RPS = 1000


def make_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Build a table. A column is right-aligned unless its heading starts with `<`."""
    new_table = table(title=title)
    for heading in headings:
        new_table.add_column(
            heading.removeprefix("<"), justify="left" if heading.startswith("<") else "right"
        )
    for row in rows:
        new_table.add_row(*row)
    return new_table


def percentile_cells(percentiles: Mapping[str, float]) -> str:
    """Format p50, p95 and p99 as one cell."""
    return " / ".join(f"{value:.0f}" for value in percentiles.values())


def size_cells(needs: Requirements, conductor: str) -> list[str]:
    """Format the numbers of routers, conductors and GPUs, and the dollars per hour."""
    counts = (needs.sizes.routers, needs.sizes.engines[conductor], needs.gpus)
    dollars = (needs.machines_usd_per_hour, needs.apis_usd_per_hour)
    return [*(f"{count:,}" for count in counts), *(f"{usd:,.0f}" for usd in dollars)]


SIZE_HEADINGS = ("routers", "conductors", "GPUs", "machines $/h", "APIs $/h")


def capacity_table(forecasts: list[report.Forecast], conductor: str) -> Table:
    """Build the table of requirements, costs and waiting times by rate."""

    def row(forecast: report.Forecast) -> list[str]:
        needs = forecast.requirements
        workers = sum(count for name, count in needs.sizes.engines.items() if name != conductor)
        usd = 1000 * forecast.usd_per_hour / 3600 / needs.rate_rps
        times = (percentile_cells(forecast.first_token_s), percentile_cells(forecast.end_s))
        cells = [*size_cells(needs, conductor), f"{workers:,}", f"{usd:,.2f}", *times]
        return [f"{needs.rate_rps:,g}", *cells, bottleneck(forecast)]

    times = ("first token p50/p95/p99 s", "end of answer p50/p95/p99 s")
    headings = ("requests/s", *SIZE_HEADINGS, "workers", "$ per 1,000 requests", *times, "<first bottleneck")
    return make_table("Requirements and waiting times by rate", headings, map(row, forecasts))


def bottleneck(forecast: report.Forecast) -> str:
    """Describe the worst shortage that a setting can fix, and the worst shortage that no setting can fix."""
    short = [need for need in forecast.requirements.needs if need.ratio > 1]
    worst = (next((need for need in short if need.setting is setting), None) for setting in (True, False))
    texts = [
        f"{n.name} needs {n.ratio:,.1f} times the available {n.available:,.0f} {n.of}" for n in worst if n
    ]
    return "; then ".join(texts) or "none"


def limits_table(needs: Requirements) -> Table:
    """Build the table of the rates at which limits are reached. Needs grow in proportion to the rate."""
    title = "Limits, in the order in which growing traffic reaches them"
    rows = (
        (f"{needs.rate_rps / each.ratio:,.3g}", each.name, f"{each.available:,.0f} {each.of}")
        for each in needs.needs
    )
    return make_table(title, ("requests/s", "<station", "<limit"), rows)


def validation_table(rows: list[dict[str, float]]) -> Table:
    """Build the table that compares a real run with its simulation."""
    names = {
        "p50_ms": "p50 ms",
        "p95_ms": "p95 ms",
        "done_rps": "answers/s",
        "router_cpu_ms": "router CPU ms",
    }
    headings = ["requests/s", "streamed"]
    for heading in names.values():
        headings += [heading, "simulated", "error"]

    def cells(row: dict[str, float]) -> list[str]:
        cells = [f"{row['rate_rps']:g}", "yes" if row["streamed"] else "no"]
        for name in names:
            cells += [f"{row[f'real_{name}']:.4g}", f"{row[f'simulated_{name}']:.4g}"]
            cells.append(f"{row[f'error_{name}']:+.1%}")
        return cells

    title = "A scripted server on a real machine, compared with its simulation"
    return make_table(title, headings, map(cells, rows))


def cpu_table(rows: list[dict[str, float]]) -> Table:
    """Build the table of measured and calculated CPU times of requests that no cost was fitted to."""
    title = "CPU time of a nearly idle router for one step of 200 words, ms per request"
    cells = (
        (
            "yes" if r["streamed"] else "no",
            f"{r['real_ms']:.1f}",
            f"{r['computed_ms']:.1f}",
            f"{r['error']:+.1%}",
        )
        for r in rows
    )
    return make_table(title, ("streamed", "measured", "calculated", "error"), cells)


def change_table(changes: dict[str, Requirements], conductor: str) -> Table:
    """Build a table of the requirements, with a row for each change of an input.

    Args:
        changes: the requirements by name of the change.
        conductor: the name of the conductor's engine.
    """
    rows = ([name, *size_cells(each, conductor)] for name, each in changes.items())
    title = f"Requirements at {CHANGED_RPS:,g} requests/s after single changes"
    return make_table(title, ("<change", *SIZE_HEADINGS), rows)


def run(params: Inputs, rates: Sequence[float], traffic: str, seed: int, out: Path, console: Console) -> int:
    """Run all simulations, print the results, and write them to the folder `out`."""
    began_s = time.monotonic()
    forecasts: list[report.Forecast] = []
    with console.status("simulating ...") as status:
        for rate in rates:
            status.update(f"simulating {rate:,g} requests/s ...")
            forecasts.append(report.forecast(params, rate, traffic=traffic, seed=seed))
        console.print(capacity_table(forecasts, params.conductor), limits_table(forecasts[-1].requirements))
        checked = params.checked
        rows = [validation.compare_rate(params, checked, at) for at in checked.rates] if checked else []
        cpu = validation.compare_cpu(params, checked) if checked else []
        changes = whatif.requirements_by_change(params, CHANGED_RPS)
        status.update("comparing the calculation with the simulation ...")
        calculation_errors = report.calculation_errors(params, CHECKED_RPS, seed)
        slice_error = report.slice_error(params, SLICE_CHECKED_AT * params.sizing.slice_rps, seed)
    if rows:
        console.print(validation_table(rows), cpu_table(cpu))
    console.print(change_table(changes, params.conductor))
    errors = ", ".join(f"{name} {error:+.1%}" for name, error in calculation_errors.items())
    console.print(f"Error of the calculated capacity, relative to the simulated capacity: {errors}")
    console.print(f"Error of the p95 if only a slice of the traffic is simulated: {slice_error:+.1%}")
    content = {
        "answers": [asdict(each) | {"usd_per_hour": each.usd_per_hour} for each in forecasts],
        "checked": rows,
        "foretold": cpu,
        "paper_error": calculation_errors,
        "slice_error": slice_error,
    }
    (out / "simulator.json").write_text(json.dumps(content, indent=2, default=str) + "\n")
    console.print(
        f"Finished in {time.monotonic() - began_s:.0f} s. The results are in {out / 'simulator.json'}."
    )
    return 0


main = Program("podium capacity")


@main.command(help=__doc__, epilog="Example: podium capacity --rates 1,10")
def plan(
    inputs_file: Annotated[
        Path,
        Option(
            "--inputs",
            help="file with the inputs of the simulation",
            show_default="loadtest/capacity/inputs.yaml",
        ),
    ] = inputs.INPUTS,
    rates: Annotated[
        Sequence[float],
        Option(
            parser=parse_rates,
            help="request rates per second, separated by commas",
            show_default="10,1000,100000",
        ),
    ] = (10.0, 1000.0, 100000.0),
    traffic: Annotated[
        str, Option(help=f"kind of traffic: {', '.join(KINDS)}, or a CSV file with a column arrival_s")
    ] = "poisson",
    seed: Annotated[int, Option(help="seed of the simulation")] = 0,
    out: Annotated[Path, Option(help="folder for the results")] = Path("build/simulator"),
) -> int:
    restore_interrupts()
    try:
        out.mkdir(parents=True, exist_ok=True)  # before the simulations, which take minutes
    except OSError as error:
        message = f"--out: cannot write to {out} ({error.strerror}). Choose another folder."
        raise CommandError(message, 2) from error
    try:
        return run(inputs.load(inputs_file), rates, traffic, seed, out, open_console(markup=True))
    except InputsError as error:
        raise CommandError(str(error), 2) from error
