"""What the cluster file declares of its machines, against what they are: open ports, images, GPUs."""

import re
from collections.abc import Mapping

from podium.doctor.cluster.files import ClusterFiles
from podium.doctor.finding import Finding, wrong

ONE, SEVERAL = "xlarge 2xlarge 4xlarge 8xlarge 16xlarge", {"12xlarge": 4, "24xlarge": 4, "48xlarge": 8}
GPUS: Mapping[str, int] = {
    **{f"{family}.{size}": 1 for family in ("g5", "g6", "g6e") for size in ONE.split()},
    **{f"{family}.{size}": count for family in ("g5", "g6", "g6e") for size, count in SEVERAL.items()},
    "p4d.24xlarge": 8,
    "p4de.24xlarge": 8,
    "p5.48xlarge": 8,
    "p5e.48xlarge": 8,
    "p5en.48xlarge": 8,
    **{
        f"g2-standard-{cpus}": count
        for cpus, count in ((4, 1), (8, 1), (12, 1), (16, 1), (32, 1), (24, 2), (48, 4), (96, 8))
    },
    **{f"a2-{family}-{count}g": count for family in ("highgpu", "ultragpu") for count in (1, 2, 4, 8)},
}
"""GPUs of a cloud's machine, by the clouds' own lists."""


def ports(files: ClusterFiles) -> list[Finding]:
    """The machines' firewall rules open the port that Serve listens on."""
    let_in, port = files.machines.open_ports, files.serve.port
    if let_in is None or any(port in each for each in let_in):
        return []
    return [
        wrong(
            (
                f"is {port}; {files.machines.file} lets in "
                + ", ".join(
                    f"{each.start}" if len(each) == 1 else f"{each.start} to {each.stop - 1}"
                    for each in let_in
                )
            ),
            f"open {port} there (security group, serveService), or listen on what is open",
            file=files.serve.file,
            field="http_options.port",
        )
    ]


def images(files: ClusterFiles) -> list[Finding]:
    """All nodes run one Ray and one Python: others do not join the cluster."""
    found: list[Finding] = []
    head = files.machines.images.get(files.machines.head.name, "")
    for node, image in files.machines.images.items():
        here, there = _versions(image), _versions(head)
        apart = [f"{what} {here[what]}" for what in here.keys() & there.keys() if here[what] != there[what]]
        if apart:
            found.append(
                wrong(
                    f"is {image} ({', '.join(sorted(apart))}); the head's is {head}",
                    "images of one Ray and one Python for all: a node of another cannot join",
                    file=files.machines.file,
                    field=f"{node}: image",
                )
            )
    return found


def _versions(image: str) -> dict[str, str]:
    """`Ray` and `Python` of Ray's own images; of another, its own version."""
    if not (seen := re.fullmatch(r"(?P<name>[^@]+):(?P<tag>[^:/@]+)(@.*)?", image)):
        return {}
    name = "Ray" if re.search(r"(^|/)ray(-\w+)?$", seen["name"]) else seen["name"]
    version, python = re.match(r"\d+(\.\d+)*", seen["tag"]), re.search(r"py3\d+", seen["tag"])
    return ({name: version[0]} if version else {}) | ({"Python": python[0]} if python else {})


def gpus(files: ClusterFiles) -> list[Finding]:
    """No node declares more GPUs than its machine has."""
    return [
        wrong(
            f"say {said:g} GPUs; a {node.instance} has {has}",
            f"GPU: {has}, or a machine with {said:g}",
            file=files.machines.file,
            field=f"{node.name}.resources",
        )
        for node in files.machines.workers
        if (has := GPUS.get(node.instance or "")) is not None and (said := node.resources.get("GPU", 0)) > has
    ]
