"""Names, GPUs and nodes: every deployment exists, has the GPUs its model is split over, and finds a node,
even at its largest.
"""

from collections.abc import Iterable, Mapping

from cluster.check.case import Case
from cluster.check.deployments import Amounts, Deployment
from cluster.check.findings import Finding
from cluster.check.machines import NodeType
from serving.deployments.build import gpus_of

SLACK = 1e-6


def names(case: Case) -> list[Finding]:
    """The Serve config names only deployments that these settings make."""
    made, given = {d.name for d in case.deployments}, case.serve.deployments.keys()
    found = [
        Finding(
            case.serve.file,
            f"applications[0].deployments.{name}",
            "is no deployment of the settings",
            f"name one of {', '.join(sorted(made))}",
        )
        for name in sorted(given - made)
    ]
    found += [
        Finding(
            case.serve.file,
            "applications[0].deployments",
            f"{name} is not in it: the settings' sizes hold",
            f"add `- name: {name}`, so that one file says how many replicas there are",
        )
        for name in sorted(made - given)
    ]
    if case.serve.settings and not case.settings_file.endswith(case.serve.settings):
        found.append(
            Finding(
                case.serve.file,
                "applications[0].args.settings",
                f"is {case.serve.settings}",
                f"write {case.settings_file}, or check that file",
            )
        )
    return found


def gpus(case: Case) -> list[Finding]:
    """A replica's bundles have as many GPUs as its model is split over."""
    return [
        Finding(
            case.serve.file,
            f"{d.name}.placement_group_bundles",
            f"hold {d.needs.get('GPU', 0):g} GPUs; {case.settings_file} splits the model over {gpus_of(d.worker)}",
            "one bundle with a GPU for each: `scale.gpus` and `tensor_parallel_size` in the settings",
        )
        for d in case.deployments
        if d.worker and d.needs.get("GPU", 0) != gpus_of(d.worker)
    ]


def nodes(case: Case) -> list[Finding]:
    """Every replica fits a node; all of them at once fit the nodes there may be."""
    return [*_homeless(case), *_overfull(case), *_head(case)]


def _homeless(case: Case) -> list[Finding]:
    return [
        Finding(
            case.machines.file,
            "available_node_types",
            f"none fits a replica of {d.name}: {describe(d.needs)}",
            f"a node type with at least that, or other bundles in {case.serve.file}",
        )
        for d in case.deployments
        if home(d, case.machines.workers) is None
    ]


def _overfull(case: Case) -> list[Finding]:
    wanted = nodes_wanted(case, largest=True)
    found = [
        Finding(
            case.machines.file,
            f"{node.name}.max_workers",
            f"is {node.max_nodes}; all replicas at their largest take {wanted[node.name]} nodes",
            f"raise it, or lower max_replicas in {case.serve.file}",
        )
        for node in case.machines.workers
        if wanted[node.name] > node.max_nodes
    ]
    total, most = sum(wanted.values()), case.machines.max_nodes
    if most is not None and total > most:
        found.append(
            Finding(
                case.machines.file,
                "max_workers",
                f"is {most}; all replicas at their largest take {total} nodes",
                "raise it (more `worker_ips` on one's own machines)",
            )
        )
    return found


def _head(case: Case) -> list[Finding]:
    head = case.machines.head
    if not any(head.resources.get(kind, 0) for kind in ("CPU", "GPU")):
        return []
    return [
        Finding(
            case.machines.file,
            f"{head.name}.resources",
            f"the head can be given replicas: {describe(head.resources)}",
            'CPU: 0 (num-cpus: "0" in KubeRay): a replica that takes its memory takes the cluster with it',
        )
    ]


def home(deployment: Deployment, types: Iterable[NodeType]) -> NodeType | None:
    """The node type that a replica runs on: of those that fit, the one with the fewest GPUs."""
    fitting = [node for node in types if node.max_nodes and fits(deployment.needs, node.resources)]
    return min(fitting, key=lambda node: node.resources.get("GPU", 0), default=None)


def fits(needs: Amounts, room: Amounts) -> bool:
    """Whether `room` has all of `needs`."""
    return all(room.get(key, 0) + SLACK >= amount for key, amount in needs.items())


def nodes_wanted(case: Case, *, largest: bool) -> dict[str, int]:
    """Nodes by kind that hold every replica, packed first-fit, largest first; never below a kind's least."""
    packed: dict[str, list[dict[str, float]]] = {node.name: [] for node in case.machines.workers}
    for deployment in sorted(case.deployments, key=lambda d: -d.needs.get("GPU", 0)):
        node = home(deployment, case.machines.workers)
        if node is None:
            continue
        for _ in range(deployment.max_replicas if largest else deployment.min_replicas):
            _pack(deployment.needs, packed[node.name], node.resources)
    return {node.name: max(len(packed[node.name]), node.min_nodes) for node in case.machines.workers}


def _pack(needs: Amounts, bins: list[dict[str, float]], whole: Mapping[str, float]) -> None:
    room = next((each for each in bins if fits(needs, each)), None)
    if room is None:
        room = dict(whole)
        bins.append(room)
    for key, amount in needs.items():
        room[key] -= amount


def describe(amounts: Amounts) -> str:
    """`4 CPU, 2 GPU`."""
    return ", ".join(f"{amount:g} {key}" for key, amount in amounts.items()) or "nothing"
