"""`podium capacity`: a table, `build/simulator/simulator.json`, and plots. Exit 2 where the inputs cannot be used.

Everything is simulated again each time, from the same seed: four minutes on a slow core.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest.simulator import inputs, real, report, whatif
from loadtest.simulator.arrivals import KINDS
from loadtest.simulator.inputs import Inputs, InputsError
from loadtest.simulator.sizing import Sized

SLICE_CHECKED_AT = 2.5
"""Times the slice's rate: there the whole is simulated too."""
CHECKED_RPS = 10
CHANGED_RPS = 1000
PLANS = 1000


def capacity(answers: list[report.Answer], conductor: str) -> Table:
    """Each rate, what it needs, costs and feels like."""
    drawn = Table(title="What a rate needs, and what its users feel")
    for heading in ("requests/s", "routers", "conductors", "workers", "GPUs", "machines $/h", "APIs $/h", "$ per 1,000",
                    "first token p50/p95/p99 s", "end p50/p95/p99 s", "first to give way"):  # fmt: skip
        drawn.add_column(heading, justify="left" if heading.startswith("first to") else "right")
    for each in answers:
        sized = each.sized
        workers = sum(count for name, count in sized.sizes.engines.items() if name != conductor)
        drawn.add_row(
            f"{sized.rate_rps:,g}", f"{sized.sizes.routers:,}", f"{sized.sizes.engines[conductor]:,}", f"{workers:,}", f"{sized.gpus:,}",
            f"{sized.machines_usd_per_hour:,.0f}", f"{sized.apis_usd_per_hour:,.0f}",
            f"{1000 * each.usd_per_hour / 3600 / sized.rate_rps:,.2f}",
            " / ".join(f"{value:.0f}" for value in each.first_token_s.values()),
            " / ".join(f"{value:.0f}" for value in each.end_s.values()), gives_way(each),
        )  # fmt: skip
    return drawn


def gives_way(answer: report.Answer) -> str:
    """The shortest of what a setting raises, and the shortest of what it does not."""
    short = [need for need in answer.sized.needs if need.ratio > 1]
    firsts = (next((need for need in short if need.setting is setting), None) for setting in (True, False))
    said = [f"{n.name}: {n.ratio:,.1f} times the {n.there:,.0f} {n.of}" for n in firsts if n]
    return "; then ".join(said) or "nothing"


def ceilings(answer: report.Answer) -> Table:
    """At which rate each limit is reached: one answer tells all, since needs grow with the rate."""
    drawn = Table(title="The limits, in the order in which traffic reaches them")
    for heading in ("requests/s", "station", "limit"):
        drawn.add_column(heading, justify="right" if heading == "requests/s" else "left")
    for need in answer.sized.needs:
        drawn.add_row(f"{answer.sized.rate_rps / need.ratio:,.3g}", need.name, f"{need.there:,.0f} {need.of}")
    return drawn


def errors(rows: list[dict[str, float]]) -> Table:
    """The real run beside its simulation."""
    drawn = Table(title="A real, scripted server on this size of machine, and its simulation")
    for heading in (
        "requests/s",
        "streamed",
        "p50 ms",
        "simulated",
        "error",
        "p95 ms",
        "simulated",
        "error",
        "done/s",
        "simulated",
        "error",
        "router CPU ms",
        "reckoned",
        "error",
    ):
        drawn.add_column(heading, justify="right")
    for row in rows:
        cells = [f"{row['rate_rps']:g}", "yes" if row["streamed"] else "no"]
        for name in ("p50_ms", "p95_ms", "done_rps", "router_cpu_ms"):
            cells += [
                f"{row[f'real_{name}']:.4g}",
                f"{row[f'simulated_{name}']:.4g}",
                f"{row[f'error_{name}']:+.1%}",
            ]
        drawn.add_row(*cells)
    return drawn


def foretold(rows: list[dict[str, float]]) -> Table:
    """The router's CPU for requests that no cost was fitted to."""
    drawn = Table(title="Router CPU for one step of 200 words, nearly idle, ms a request")
    for heading in ("streamed", "measured", "reckoned", "error"):
        drawn.add_column(heading, justify="right")
    for row in rows:
        drawn.add_row(
            "yes" if row["streamed"] else "no",
            f"{row['real_ms']:.1f}",
            f"{row['reckoned_ms']:.1f}",
            f"{row['error']:+.1%}",
        )
    return drawn


def what_ifs(found: dict[str, Sized], conductor: str) -> Table:
    """One change at a time."""
    drawn = Table(
        title=f"What would change the answer at {next(iter(found.values())).rate_rps:,g} requests/s"
    )
    for heading in ("change", "routers", "conductors", "GPUs", "machines $/h", "APIs $/h"):
        drawn.add_column(heading, justify="left" if heading == "change" else "right")
    for name, each in found.items():
        drawn.add_row(
            name, f"{each.sizes.routers:,}", f"{each.sizes.engines[conductor]:,}", f"{each.gpus:,}",
            f"{each.machines_usd_per_hour:,.0f}", f"{each.apis_usd_per_hour:,.0f}",
        )  # fmt: skip
    return drawn


def schedulers(ends_s: dict[str, list[float]]) -> Table:
    """The three, and Podium's wall over theirs plan by plan."""
    drawn = Table(title=f"{len(ends_s['podium']):,} plans, one at a time, seconds to the answer's end")
    for heading in ("scheduler", "p50", "p95", "p99", "Podium's wall over its, p50", "p95"):
        drawn.add_column(heading, justify="left" if heading == "scheduler" else "right")
    for name, values in ends_s.items():
        ratios = report.percentiles(
            [ours / theirs for ours, theirs in zip(ends_s["podium"], values, strict=True)]
        )
        numbers = [f"{value:.0f}" for value in report.percentiles(values).values()]
        drawn.add_row(name, *numbers, f"{ratios['p50']:.3f}", f"{ratios['p95']:.3f}")
    return drawn


def scaling(given: Inputs, peak_rps: float, out: Path) -> tuple[Table, dict[str, object]]:
    """A burst and a day under Serve's autoscaling."""
    from loadtest.simulator import plots

    drawn = Table(title=f"Autoscaling, an hour with a peak of {peak_rps:g} requests/s")
    for heading in ("traffic", "engine", "most replicas paid for", "replica-hours", "end p50/p95/p99 s"):
        drawn.add_column(heading)
    plain: dict[str, object] = {}
    for traffic in ("burst", "diurnal"):
        run = report.scaled(given, peak_rps, traffic)
        felt = report.percentiles([each.end_s - each.arrived_s for each in run.served])
        for name, seen in run.seen.items():
            most, hours = max(each[2] for each in seen), run.replica_hours(name)
            drawn.add_row(
                traffic,
                name,
                f"{most}",
                f"{hours:.1f}",
                " / ".join(f"{value:.0f}" for value in felt.values()),
            )
            plain[f"{traffic} {name}"] = {"most_replicas": most, "replica_hours": hours} | felt
            plots.scaling(seen, run.times_s, f"{name}, {traffic}", out / f"{traffic}-{name}.png")
    return drawn, plain


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="podium capacity", description=__doc__)
    parser.add_argument(
        "--inputs", type=Path, default=inputs.INPUTS, help="a file like the default: %(default)s"
    )
    parser.add_argument("--rates", default="10,1000,100000", help="requests a second (default: %(default)s)")
    parser.add_argument(
        "--traffic", default="poisson", help=f"{', '.join(KINDS)}, or a CSV file with a column arrival_s"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of everything that is drawn (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/simulator"), help="folder (default: %(default)s)"
    )
    args = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    try:
        rates = [float(rate) for rate in args.rates.split(",")]
    except ValueError:
        parser.error(f"--rates must be numbers with commas between them, not {args.rates!r}")
    if not all(0 < rate < float("inf") for rate in rates):
        parser.error("--rates must be above 0")
    try:
        given = inputs.load(args.inputs)
        return run(given, rates, args.traffic, args.seed, args.out, console)
    except InputsError as error:
        Console(stderr=True).print(f"[red]{error}[/]")
        return 2


def run(given: Inputs, rates: list[float], traffic: str, seed: int, out: Path, console: Console) -> int:
    """All questions, answered, drawn and written."""
    from loadtest.simulator import plots

    began_s = time.monotonic()
    answers: list[report.Answer] = []
    with console.status("simulating ...") as status:
        for rate in rates:
            status.update(f"simulating {rate:,g} requests/s ...")
            answers.append(report.answered(given, rate, traffic=traffic, seed=seed))
        console.print(capacity(answers, given.conductor), ceilings(answers[-1]))
        status.update("simulating autoscaling ...")
        scaled, scaled_plain = scaling(given, CHECKED_RPS, out)
        ends_s = report.scheduled(given, PLANS, seed)
        rows = (
            [real.compared(given, given.checked, at) for at in given.checked.rates] if given.checked else []
        )
        cpu = real.foretold(given, given.checked) if given.checked else []
        changed = whatif.changed(given, CHANGED_RPS)
        status.update("checking the paper against the simulation ...")
        paper = report.overloaded(given, CHECKED_RPS, seed)
        sliced = report.sliced(given, SLICE_CHECKED_AT * given.sizing.slice_rps, seed)
    console.print(
        scaled,
        schedulers(ends_s),
        *([errors(rows), foretold(cpu)] if rows else []),
        what_ifs(changed, given.conductor),
    )
    console.print(
        f"Capacity on paper over the simulated one, less 1: {', '.join(f'{n} {e:+.1%}' for n, e in paper.items())}"
    )
    console.print(f"p95 of a slice over the whole's, less 1: {sliced:+.1%}")
    plots.distributions(
        ends_s,
        f"{PLANS} plans, simulated, one at a time",
        "seconds to the answer's end",
        out / "schedulers.png",
    )
    written = {
        "answers": [each.plain() for each in answers], "autoscaling": scaled_plain, "checked": rows, "foretold": cpu,
        "schedulers_s": {name: report.percentiles(values) for name, values in ends_s.items()},
        "paper_error": paper, "slice_error": sliced,
    }  # fmt: skip
    (out / "simulator.json").write_text(json.dumps(written, indent=2, default=str) + "\n")
    console.print(f"{time.monotonic() - began_s:.0f} s; written to {out / 'simulator.json'}, plots beside it")
    return 0


if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job starts with it ignored
    sys.exit(main())
