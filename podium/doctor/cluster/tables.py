"""Print tables of a cluster's engines, machines and costs."""

from decimal import Decimal

from rich.table import Table

from podium.command_line import terminal
from podium.doctor.cluster import cost, memory
from podium.doctor.cluster.files import ClusterFiles


def show_tables(files: ClusterFiles, mix: dict[str, Decimal], rps: Decimal | None) -> None:
    """Print tables of engines, machines and costs. Machines are shared by `rps` requests per second, if
    known.
    """
    terminal.console().print(
        engines_table(files), machines_table(files), *price_lines(files, mix, rps), sep="\n"
    )


def engines_table(files: ClusterFiles) -> Table:
    """Build a table of each engine's GPU memory."""
    columns = ("replicas", "GPUs", "weights", "usable", "KV tokens")
    table = _table("Engines (estimated memory in GiB, summed over the GPUs of a replica)", "worker", *columns)
    for deployment in files.deployments:
        if deployment.worker is None:
            continue
        fit = memory.fit(files, deployment)
        cells = (
            (
                f"{fit.gpus} x {fit.gpu}",
                f"{fit.weights_gib:.0f}",
                f"{fit.usable_gib:.0f}",
                f"{fit.kv_tokens:,}",
            )
            if fit
            else ()
        )
        table.add_row(
            deployment.worker.name, _range(deployment.min_replicas, deployment.max_replicas), *cells
        )
    return table


def machines_table(files: ClusterFiles) -> Table:
    """Build a table of node counts and prices at the smallest and the largest size."""
    table = _table(f"Machines of {files.machines.file}", "node", "machine", "nodes", "$/h each", "$/h")
    lines = cost.hourly(files)
    for line in lines:
        usd = line.usd_per_h
        table.add_row(
            line.node.name,
            (line.node.instance or "") + (" (spot)" if line.node.spot else ""),
            _range(line.at_least, line.at_most),
            dollars(usd),
            _range_usd(usd and usd * line.at_least, usd and usd * line.at_most),
        )
    table.add_section()
    table.add_row("all", "", "", "", _range_usd(*cost.sums(lines)))
    return table


def price_lines(files: ClusterFiles, mix: dict[str, Decimal], rps: Decimal | None) -> list[str]:
    """Describe the cost of a thousand requests."""
    shown = ", ".join(f"{share:%} {kind}".replace(".000000", "") for kind, share in mix.items())
    lines = [
        f"Cost of a thousand requests ({shown}): {dollars(cost.provider_usd_per_thousand(files, mix))} billed by providers"
    ]
    if rps is None:
        return [*lines, "plus a share of the machines' cost. Pass --rps to compute it.", ""]
    smallest, largest = (cost.machines_per_thousand(usd, rps) for usd in cost.sums(cost.hourly(files)))
    return [
        *lines,
        f"plus {_range_usd(smallest, largest)} for the machines, at {rps} requests per second.",
        "This share is the machines' cost divided by --rps, whether or not the machines can serve that rate.",
        cost.pace(files, mix, rps),
        "See `podium capacity` for the rate they can serve, and docs/capacity.md for the shipped files.",
        "",
    ]


def _table(title: str, first: str, *others: str) -> Table:
    return terminal.table(first, *others, title=title)


def dollars(usd: Decimal | None) -> str:
    """Format an amount as `$1.25`, or as `?` if it is unknown."""
    return "?" if usd is None else f"${usd:,.2f}"


def _range(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least} to {most}"


def _range_usd(least: Decimal | None, most: Decimal | None) -> str:
    return dollars(least) if least == most else f"{dollars(least)} to {dollars(most)}"
