"""Names, GPUs and nodes: every deployment exists, has the GPUs its model is split over, and finds a node,
even at its largest.
"""

from collections.abc import Iterable, Mapping

from podium.doctor.cluster.deployments import Amounts, Deployment
from podium.doctor.cluster.files import ClusterFiles
from podium.doctor.cluster.machines import NodeType
from podium.doctor.finding import Finding, wrong
from serving.deployments.build import gpus_of

SLACK = 1e-6


def names(files: ClusterFiles) -> list[Finding]:
    """The Serve config names only deployments that these settings make."""
    made, given = {d.name for d in files.deployments}, files.serve.deployments.keys()
    found = [
        wrong(
            "is no deployment of the settings",
            f"name one of {', '.join(sorted(made))}",
            file=files.serve.file,
            field=f"applications[0].deployments.{name}",
        )
        for name in sorted(given - made)
    ]
    found += [
        wrong(
            f"{name} is not in it: the settings' sizes hold",
            f"add `- name: {name}`, so that one file says how many replicas there are",
            file=files.serve.file,
            field="applications[0].deployments",
        )
        for name in sorted(made - given)
    ]
    if files.serve.settings and not files.settings_file.endswith(files.serve.settings):
        found.append(
            wrong(
                f"is {files.serve.settings}",
                f"write {files.settings_file}, or check that file",
                file=files.serve.file,
                field="applications[0].args.settings",
            )
        )
    return found


def gpus(files: ClusterFiles) -> list[Finding]:
    """A replica's bundles have as many GPUs as its model is split over."""
    return [
        wrong(
            f"hold {d.needs.get('GPU', 0):g} GPUs; {files.settings_file} splits the model over {gpus_of(d.worker)}",
            "one bundle with a GPU for each: `scale.gpus` and `tensor_parallel_size` in the settings",
            file=files.serve.file,
            field=f"{d.name}.placement_group_bundles",
        )
        for d in files.deployments
        if d.worker and d.needs.get("GPU", 0) != gpus_of(d.worker)
    ]


def nodes(files: ClusterFiles) -> list[Finding]:
    """Every replica fits a node; all of them at once fit the nodes there may be."""
    return [*_homeless(files), *_overfull(files), *_head(files)]


def _homeless(files: ClusterFiles) -> list[Finding]:
    return [
        wrong(
            f"none fits a replica of {d.name}: {describe(d.needs)}",
            f"a node type with at least that, or other bundles in {files.serve.file}",
            file=files.machines.file,
            field="available_node_types",
        )
        for d in files.deployments
        if home(d, files.machines.workers) is None
    ]


def _overfull(files: ClusterFiles) -> list[Finding]:
    wanted = nodes_wanted(files, largest=True)
    found = [
        wrong(
            f"is {node.max_nodes}; all replicas at their largest take {wanted[node.name]} nodes",
            f"raise it, or lower max_replicas in {files.serve.file}",
            file=files.machines.file,
            field=f"{node.name}.max_workers",
        )
        for node in files.machines.workers
        if wanted[node.name] > node.max_nodes
    ]
    total, most = sum(wanted.values()), files.machines.max_nodes
    if most is not None and total > most:
        found.append(
            wrong(
                f"is {most}; all replicas at their largest take {total} nodes",
                "raise it (more `worker_ips` on one's own machines)",
                file=files.machines.file,
                field="max_workers",
            )
        )
    return found


def _head(files: ClusterFiles) -> list[Finding]:
    head = files.machines.head
    if not any(head.resources.get(kind, 0) for kind in ("CPU", "GPU")):
        return []
    return [
        wrong(
            f"the head can be given replicas: {describe(head.resources)}",
            'CPU: 0 (num-cpus: "0" in KubeRay): a replica that takes its memory takes the cluster with it',
            file=files.machines.file,
            field=f"{head.name}.resources",
        )
    ]


def home(deployment: Deployment, types: Iterable[NodeType]) -> NodeType | None:
    """The node type that a replica runs on: of those that fit, the one with the fewest GPUs."""
    fitting = [node for node in types if node.max_nodes and fits(deployment.needs, node.resources)]
    return min(fitting, key=lambda node: node.resources.get("GPU", 0), default=None)


def fits(needs: Amounts, room: Amounts) -> bool:
    """Whether `room` has all of `needs`."""
    return all(room.get(key, 0) + SLACK >= amount for key, amount in needs.items())


def nodes_wanted(files: ClusterFiles, *, largest: bool) -> dict[str, int]:
    """Nodes by kind that hold every replica, packed first-fit, largest first; never below a kind's least."""
    packed: dict[str, list[dict[str, float]]] = {node.name: [] for node in files.machines.workers}
    for deployment in sorted(files.deployments, key=lambda d: -d.needs.get("GPU", 0)):
        node = home(deployment, files.machines.workers)
        if node is None:
            continue
        for _ in range(deployment.max_replicas if largest else deployment.min_replicas):
            _pack(deployment.needs, packed[node.name], node.resources)
    return {node.name: max(len(packed[node.name]), node.min_nodes) for node in files.machines.workers}


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
