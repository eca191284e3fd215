"""What every check finds, and the tables that show it with the machines and what they cost."""

from collections.abc import Callable
from decimal import Decimal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from cluster.check import code, cost, hardware, memory, placing, running, scaling
from cluster.check.case import Case
from cluster.check.findings import Finding

CHECKS: tuple[Callable[[Case], list[Finding]], ...] = (
    code.builder,
    code.user_configs,
    scaling.policies,
    scaling.counts,
    scaling.both,
    hardware.ports,
    hardware.images,
    hardware.gpus,
    placing.names,
    placing.gpus,
    placing.nodes,
    memory.memory,
    running.keys,
    running.store,
    running.prices,
    running.drains,
    running.spot,
    cost.unknown_prices,
    cost.strangers,
)


def findings(case: Case) -> list[Finding]:
    """What every check has to say, faults first."""
    return sorted((each for check in CHECKS for each in check(case)), key=lambda finding: not finding.fault)


def show(case: Case, mix: dict[str, Decimal], rps: Decimal | None, out: Console) -> int:
    """Print all of it; the number of faults.

    Args:
        case: the files.
        mix: shares of the kinds of requests.
        rps: requests per second that share the machines.
        out: where to.
    """
    found = findings(case)
    out.print(engines_table(case), machines_table(case), *price_lines(case, mix, rps), sep="\n")
    if found:
        out.print(findings_table(found))
    faults = sum(finding.fault for finding in found)
    out.print(
        f"[red]{faults} faults[/red]" if faults else "[green]Pool, Serve config and machines agree.[/green]"
    )
    return faults


def engines_table(case: Case) -> Table:
    """What each engine takes of its GPUs."""
    columns = ("replicas", "GPUs", "weights", "usable", "KV tokens")
    table = _table("Engines (estimated; memory in GiB, over a replica's GPUs)", "worker", *columns)
    for deployment in case.deployments:
        if deployment.worker is None:
            continue
        fit = memory.fit(case, deployment)
        known = (
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
            deployment.worker.name, _range(deployment.min_replicas, deployment.max_replicas), *known
        )
    return table


def machines_table(case: Case) -> Table:
    """What runs at the smallest and the largest, and its price."""
    table = _table(f"Machines of {case.machines.file}", "node", "machine", "nodes", "each $/h", "$/h")
    lines = cost.hourly(case)
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


def price_lines(case: Case, mix: dict[str, Decimal], rps: Decimal | None) -> list[str]:
    """What a thousand requests cost."""
    shown = ", ".join(f"{share:%} {kind}".replace(".000000", "") for kind, share in mix.items())
    lines = [
        f"A thousand requests ({shown}): {dollars(cost.provider_usd_per_thousand(case, mix))} billed by providers"
    ]
    if rps is None:
        return [*lines, "and the machines' share: pass --rps.", ""]
    smallest, largest = (cost.machines_per_thousand(usd, rps) for usd in cost.sums(cost.hourly(case)))
    return [
        *lines,
        f"and {_range_usd(smallest, largest)} of the machines, if they serve {rps} requests a second.",
        "That divides their cost by the rate that you gave, whether or not they can serve it.",
        cost.pace(case, mix, rps),
        "What they do serve: `podium capacity`; of the files that ship, docs/capacity.md.",
        "",
    ]


def findings_table(found: list[Finding]) -> Table:
    """One row a finding: where, what, and what to write."""
    table = Table("", "file and field", "what", "remedy", title="Findings", show_lines=True)
    for each in found:
        kind = "[red]fault[/red]" if each.fault else "remark"
        table.add_row(kind, f"{each.file}\n{each.field}", each.says, each.remedy)
    return table


def _table(title: str, first: str, *others: str) -> Table:
    return Table(Column(first, no_wrap=True), *others, title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))


def dollars(usd: Decimal | None) -> str:
    """`$1.25`; an unknown price is a question mark."""
    return "?" if usd is None else f"${usd:,.2f}"


def _range(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least} to {most}"


def _range_usd(least: Decimal | None, most: Decimal | None) -> str:
    return dollars(least) if least == most else f"{dollars(least)} to {dollars(most)}"
