"""Check that deployments fit on the cluster's nodes.

Each deployment must exist in the settings and have as many GPUs as its model is split over. Its replicas must
fit on the nodes even at their maximum number.
"""

from collections.abc import Iterable, Mapping

from podium.doctor.cluster.deployments import Amounts, Deployment
from podium.doctor.cluster.files import ClusterFiles
from podium.doctor.cluster.machines import NodeType
from podium.doctor.finding import Finding, wrong
from serving.deployments.build import gpus_of

SLACK = 1e-6


def names(files: ClusterFiles) -> list[Finding]:
    """Check that the Serve config and the settings name the same deployments."""
    expected, configured = {d.name for d in files.deployments}, files.serve.deployments.keys()
    findings = [
        wrong(
            "is not a deployment of the settings.",
            f"Use one of {', '.join(sorted(expected))}.",
            file=files.serve.file,
            field=f"applications[0].deployments.{name}",
        )
        for name in sorted(configured - expected)
    ]
    findings += [
        wrong(
            f"lack {name}, so the replica counts of the settings apply to it.",
            f"Add `- name: {name}`, so that one file contains all replica counts.",
            file=files.serve.file,
            field="applications[0].deployments",
        )
        for name in sorted(expected - configured)
    ]
    if files.serve.settings and not files.settings_file.endswith(files.serve.settings):
        findings.append(
            wrong(
                f"is {files.serve.settings}, but this check reads {files.settings_file}.",
                f"Set it to {files.settings_file}, or pass --settings {files.serve.settings} to this check.",
                file=files.serve.file,
                field="applications[0].args.settings",
            )
        )
    return findings


def gpus(files: ClusterFiles) -> list[Finding]:
    """Check that a replica's bundles have as many GPUs as its model is split over."""
    return [
        wrong(
            f"have {d.needs.get('GPU', 0):g} GPUs, but {files.settings_file} splits the model over {gpus_of(d.worker)}.",
            "Give each GPU its own bundle, and set matching values of `scale.gpus` and `tensor_parallel_size` in the settings.",
            file=files.serve.file,
            field=f"{d.name}.placement_group_bundles",
        )
        for d in files.deployments
        if d.worker and d.needs.get("GPU", 0) != gpus_of(d.worker)
    ]


def nodes(files: ClusterFiles) -> list[Finding]:
    """Check that each replica fits on a node, and that all replicas fit on the allowed number of nodes."""
    return [*_homeless(files), *_overfull(files), *_head(files)]


def _homeless(files: ClusterFiles) -> list[Finding]:
    return [
        wrong(
            f"have no type that fits a replica of {d.name}, which needs {describe(d.needs)}.",
            f"Add a node type with at least these resources, or change the bundles in {files.serve.file}.",
            file=files.machines.file,
            field="available_node_types",
        )
        for d in files.deployments
        if node_type_of(d, files.machines.workers) is None
    ]


def _overfull(files: ClusterFiles) -> list[Finding]:
    n_nodes = nodes_wanted(files, largest=True)
    findings = [
        wrong(
            f"is {node.max_nodes}, but the maximum number of replicas needs {n_nodes[node.name]} nodes.",
            f"Raise max_workers, or lower max_replicas in {files.serve.file}.",
            file=files.machines.file,
            field=f"{node.name}.max_workers",
        )
        for node in files.machines.workers
        if n_nodes[node.name] > node.max_nodes
    ]
    total, most = sum(n_nodes.values()), files.machines.max_nodes
    if most is not None and total > most:
        findings.append(
            wrong(
                f"is {most}, but the maximum number of replicas needs {total} nodes.",
                "Raise max_workers. With the local provider, add `worker_ips`.",
                file=files.machines.file,
                field="max_workers",
            )
        )
    return findings


def _head(files: ClusterFiles) -> list[Finding]:
    head = files.machines.head
    if not any(head.resources.get(kind, 0) for kind in ("CPU", "GPU")):
        return []
    return [
        wrong(
            f"let the head node run replicas ({describe(head.resources)}).",
            'Set CPU: 0 (num-cpus: "0" in KubeRay). A replica that exhausts the head\'s memory stops the whole cluster.',
            file=files.machines.file,
            field=f"{head.name}.resources",
        )
    ]


def node_type_of(deployment: Deployment, types: Iterable[NodeType]) -> NodeType | None:
    """Return the fitting node type with the fewest GPUs for a replica of `deployment`, or None."""
    fitting = [node for node in types if node.max_nodes and fits(deployment.needs, node.resources)]
    return min(fitting, key=lambda node: node.resources.get("GPU", 0), default=None)


def fits(needs: Amounts, room: Amounts) -> bool:
    return all(room.get(key, 0) + SLACK >= amount for key, amount in needs.items())


def nodes_wanted(files: ClusterFiles, *, largest: bool) -> dict[str, int]:
    """Return the nodes of each type for the `largest` or smallest number of replicas, packed first-fit, most
    GPUs first, and at least the minimum.
    """
    packed: dict[str, list[dict[str, float]]] = {node.name: [] for node in files.machines.workers}
    for deployment in sorted(files.deployments, key=lambda d: -d.needs.get("GPU", 0)):
        node = node_type_of(deployment, files.machines.workers)
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
    """Format resources as `4 CPU, 2 GPU`."""
    return ", ".join(f"{amount:g} {key}" for key, amount in amounts.items()) or "nothing"
