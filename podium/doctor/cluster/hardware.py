"""Check the machines that a cluster file declares: open ports, images and GPUs."""

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
"""Number of GPUs of each instance type, from the lists of the clouds."""


def ports(files: ClusterFiles) -> list[Finding]:
    """Check that the machines' firewall opens the port of Ray Serve."""
    open_ports, port = files.machines.open_ports, files.serve.port
    if open_ports is None or any(port in each for each in open_ports):
        return []
    ranges = (
        f"{each.start}" if len(each) == 1 else f"{each.start} to {each.stop - 1}" for each in open_ports
    )
    return [
        wrong(
            f"is {port}, but the open ports in {files.machines.file} are: {', '.join(ranges) or 'none'}.",
            f"Open port {port} there (security group or serveService), or listen on an open port.",
            file=files.serve.file,
            field="http_options.port",
        )
    ]


def images(files: ClusterFiles) -> list[Finding]:
    """Check that all nodes have the same Ray and Python versions. Others cannot join the cluster."""
    findings: list[Finding] = []
    head = files.machines.images.get(files.machines.head.name, "")
    for node, image in files.machines.images.items():
        here, there = _versions(image), _versions(head)
        apart = [f"{what} {here[what]}" for what in here.keys() & there.keys() if here[what] != there[what]]
        if apart:
            findings.append(
                wrong(
                    f"is {image} ({', '.join(sorted(apart))}), but the head node uses {head}.",
                    "Use images with the same Ray and Python versions on all nodes. Other nodes cannot join the cluster.",
                    file=files.machines.file,
                    field=f"{node}: image",
                )
            )
    return findings


def _versions(image: str) -> dict[str, str]:
    """Return the `Ray` and `Python` versions of Ray's own image tags, else the version by the image's name."""
    if not (parts := re.fullmatch(r"(?P<name>[^@]+):(?P<tag>[^:/@]+)(@.*)?", image)):
        return {}
    name = "Ray" if re.search(r"(^|/)ray(-\w+)?$", parts["name"]) else parts["name"]
    version, python = re.match(r"\d+(\.\d+)*", parts["tag"]), re.search(r"py3\d+", parts["tag"])
    return ({name: version[0]} if version else {}) | ({"Python": python[0]} if python else {})


def gpus(files: ClusterFiles) -> list[Finding]:
    """Check that no node declares more GPUs than its machine has."""
    return [
        wrong(
            f"declares {declared:g} GPUs, but a {node.instance} has {has}.",
            f"Set GPU: {has}, or use an instance type with {declared:g} GPUs.",
            file=files.machines.file,
            field=f"{node.name}.resources",
        )
        for node in files.machines.workers
        if (has := GPUS.get(node.instance or "")) is not None
        and (declared := node.resources.get("GPU", 0)) > has
    ]
