"""Cost of a cluster: dollars per hour at its smallest and largest size, and dollars per thousand requests.

The cost of a request has two parts. Providers bill tokens. The machines cost the same for any number of
requests, so the share of a request depends on the rate. `loadtest/` estimates how many nodes a rate needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from conductor.model.usage import Usage, cost_of, total
from podium.doctor.cluster.files import ClusterFiles
from podium.doctor.cluster.machines import NodeType
from podium.doctor.cluster.placing import nodes_wanted
from podium.doctor.cluster.reading import CheckError
from podium.doctor.finding import Finding, warning
from serving.settings.workers import VllmSettings

SECONDS_AN_HOUR = 3600


@dataclass(frozen=True, slots=True)
class NodeCost:
    """Node counts and price of one node type. Sums that include a price of None are unknown."""

    node: NodeType
    at_least: int
    at_most: int
    usd_per_h: Decimal | None


def hourly(files: ClusterFiles) -> list[NodeCost]:
    """Return the cost of the head node and of each node type."""
    least, most = nodes_wanted(files, largest=False), nodes_wanted(files, largest=True)
    workers = [NodeCost(n, least[n.name], most[n.name], price_of(files, n)) for n in files.machines.workers]
    return [NodeCost(files.machines.head, 1, 1, price_of(files, files.machines.head)), *workers]


def price_of(files: ClusterFiles, node: NodeType) -> Decimal | None:
    """Return the price of one node in dollars per hour, or None if it is unknown."""
    price = files.prices.instances.get(node.instance or "")
    if price is None:
        return None
    return price.spot_usd_per_h if node.spot else price.on_demand_usd_per_h


def sums(lines: list[NodeCost]) -> tuple[Decimal | None, Decimal | None]:
    """Return dollars per hour at the smallest and largest size, or None if a price is unknown."""
    smallest = total([_times(line.usd_per_h, line.at_least) for line in lines])
    return smallest, total([_times(line.usd_per_h, line.at_most) for line in lines])


def _times(usd: Decimal | None, count: int | Decimal) -> Decimal | None:
    return None if usd is None else usd * count


def unknown_prices(files: ClusterFiles) -> list[Finding]:
    """Warn about instance types without a known price. The operator's own machines have none."""
    return [
        warning(
            f"uses {line.node.instance or 'a machine'}, whose price is unknown.",
            "Add its price under `instances` in cluster/prices.yaml, or pass your own price file with --prices.",
            file=files.machines.file,
            field=f"{line.node.name}",
        )
        for line in hourly(files)
        if line.usd_per_h is None and line.node.instance
    ]


# -------------------------------------------------------------------------------- requests


def shares(text: str, kinds: Mapping[str, object]) -> dict[str, Decimal]:
    """Parse a mix such as `chat=0.7,ultra=0.3`. Raise CheckError if it is invalid."""
    mix: dict[str, Decimal] = {}
    for part in text.split(","):
        kind, _, share = part.strip().partition("=")
        if kind in mix:
            raise CheckError(f"--mix lists {kind!r} twice. Give each kind one share.")
        try:
            mix[kind] = Decimal(share)
        except ArithmeticError as exc:
            raise CheckError(
                f"--mix: {part.strip()!r} is invalid. Use KIND=SHARE, such as chat=0.7."
            ) from exc
        if kind not in kinds:
            raise CheckError(f"--mix: unknown kind {kind!r}. Choose from {', '.join(kinds)}.")
    if (
        not all(share.is_finite() for share in mix.values())
        or sum(mix.values()) != 1
        or min(mix.values()) < 0
    ):
        raise CheckError(f"--mix: the shares in {text!r} must be at least 0 and sum to 1.")
    return mix


def provider_usd_per_thousand(files: ClusterFiles, mix: Mapping[str, Decimal]) -> Decimal | None:
    """Return providers' dollars for a thousand requests of a mix, or None if a price is unknown."""
    return total([_times(provider_usd(files, kind), share * 1000) for kind, share in mix.items()])


def provider_usd(files: ClusterFiles, kind: str) -> Decimal | None:
    """Return providers' dollars for a request of `kind`, or None if a worker or price is unknown."""
    prices = {worker.name: worker.price for worker in files.settings.workers}
    costs: list[Decimal | None] = []
    for call in files.prices.requests[kind]:
        price = prices.get(call.worker)
        usage = Usage(call.input_tokens, call.output_tokens, call.cached_input_tokens)
        costs.append(cost_of(price.to_price() if price else None, usage))
    return total(costs)


def unknown_workers(files: ClusterFiles) -> list[Finding]:
    """Warn about requests in the price table, whose worker is not in the settings and cost so unknown."""
    names = {worker.name for worker in files.settings.workers}
    return [
        warning(
            f"calls {call.worker!r}, which {files.settings_file} does not define.",
            "Pass a price file that describes your own requests with --prices.",
            file=files.prices_file,
            field=f"requests.{kind}",
        )
        for kind, calls in files.prices.requests.items()
        for call in calls
        if call.worker not in names
    ]


def machines_per_thousand(usd_per_h: Decimal | None, rps: Decimal) -> Decimal | None:
    """Return the cost of the machines in dollars per thousand requests, at `rps` requests per second."""
    return None if usd_per_h is None else usd_per_h / (rps * SECONDS_AN_HOUR) * 1000


def pace(files: ClusterFiles, mix: Mapping[str, Decimal], rps: Decimal) -> str:
    """Describe the bottleneck at `rps` requests per second, and the tokens per second of its answers."""
    settings = files.settings
    owners = {w.name: settings.owner_of(w).name for w in settings.workers if isinstance(w, VllmSettings)}
    tokens_per_s: dict[str, Decimal] = {}
    for kind, share in mix.items():
        for call in files.prices.requests[kind]:
            if owner := owners.get(call.worker):
                tokens_per_s[owner] = tokens_per_s.get(owner, Decimal(0)) + rps * share * call.output_tokens
    rows = [
        (
            tokens_per_s[each.worker.name] / (slots * each.max_replicas),
            each.worker.name,
            slots * each.max_replicas,
        )
        for each in files.deployments
        if each.worker
        and each.worker.name in tokens_per_s
        and each.max_replicas
        and (slots := int(each.worker.engine.get("max_num_seqs", 0)))
    ]
    if not rows:
        return "The engines' capacity is unknown, because their `max_num_seqs` is not set."
    pace, name, slots = max(rows)
    return (
        f"At their maximum number, the replicas of {name} generate {slots} answers concurrently (max_num_seqs x max_replicas). "
        f"To keep up, each answer must reach {pace:,.0f} tokens per second."
    )
