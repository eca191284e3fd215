"""What the cluster files say, as data: replicas, batches, targets and prices have their home there, not in `inputs.yaml`.

A number that `inputs.yaml` gives itself wins, so that a copy of it can ask what another one would change.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]


def completed(given: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs as written, with what they leave to the files under `deployed`.

    Raises:
        ValueError: a file lacks a deployment, worker or machine that the inputs name, or its deployments disagree.
        OSError: a file is not there.
    """
    files = {name: yaml.safe_load((ROOT / path).read_text()) for name, path in given["deployed"].items()}
    served = {each["name"]: each for each in files["serve"]["applications"][0]["deployments"]}
    workers = {each["name"]: each for each in files["settings"]["workers"]}
    targets: dict[str, Any] = {}
    engines = {}
    for name, engine in given["engines"].items():
        names = engine["workers"]
        scaled = [
            found(served, f"vllm-{each}", "deployments of `serve`")["autoscaling_config"] for each in names
        ]
        batches = [found(workers, each, "workers of `settings`")["engine"]["max_num_seqs"] for each in names]
        engines[name] = {
            "max_replicas": sum(each["max_replicas"] for each in scaled),
            "max_num_seqs": same(batches, f"max_num_seqs of engine {name!r}"),
        } | engine  # fmt: skip
        target = [each["target_ongoing_requests"] for each in scaled]
        targets[name] = same(target, f"target_ongoing_requests of engine {name!r}")
    prices = files["prices"]["instances"]
    machines = {
        name: {"usd_per_hour": found(found(prices, name, "`prices`"), f"{machine['bought']}_usd_per_h", f"`prices`, {name}")}
        | machine
        for name, machine in given["machines"].items()
    }  # fmt: skip
    router = {"replicas": found(served, "router", "deployments of `serve`")["num_replicas"]} | given["router"]
    scaling = {"target_ongoing_requests": targets} | given["autoscaling"]
    return dict(given) | {"engines": engines, "machines": machines, "router": router, "autoscaling": scaling}


def found(among: Mapping[str, Any], name: str, where: str) -> Any:
    """What is called so.

    Raises:
        ValueError: nothing is.
    """
    if name not in among:
        raise ValueError(f"{name!r} is not among the {where}; there are: {', '.join(among)}")
    return among[name]


def same(values: list[Any], what: str) -> Any:
    """The one value that all have.

    Raises:
        ValueError: they differ.
    """
    if len(set(values)) != 1:
        raise ValueError(
            f"{what} is {values} in the cluster files: give each an engine of its own, or make them agree"
        )
    return values[0]
