"""Numbers that the simulation reads from the cluster files: replicas, batches and prices.

They are not copied to `inputs.yaml`. If `inputs.yaml` has such a number anyway, it takes precedence, so that
a copy of the inputs can test a different value.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]


def complete(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs with numbers from the files under `deployed`. Numbers for autoscaling, which older
    inputs contain, are ignored.
    """
    files = {name: yaml.safe_load((ROOT / path).read_text()) for name, path in params["deployed"].items()}
    deployments = {each["name"]: each for each in files["serve"]["applications"][0]["deployments"]}
    workers = {each["name"]: each for each in files["settings"]["workers"]}
    engines: dict[str, Any] = {}
    for name, engine in params["engines"].items():
        scaling = [
            lookup(deployments, f"vllm-{worker}", "deployments of `serve`")["autoscaling_config"]
            for worker in engine["workers"]
        ]
        batches = [
            lookup(workers, worker, "workers of `settings`")["engine"]["max_num_seqs"]
            for worker in engine["workers"]
        ]
        max_num_seqs = common_value(batches, f"max_num_seqs of engine {name!r}")
        max_replicas = sum(each["max_replicas"] for each in scaling)
        engines[name] = {"max_replicas": max_replicas, "max_num_seqs": max_num_seqs} | engine
        engines[name].pop("cold_start_s", None)
    prices = files["prices"]["instances"]
    machines: dict[str, Any] = {}
    for name, machine in params["machines"].items():
        price = f"{machine['bought']}_usd_per_h"
        usd_per_hour = lookup(lookup(prices, name, "prices under `prices`"), price, f"prices of {name}")
        machines[name] = {"usd_per_hour": usd_per_hour} | machine
    replicas = lookup(deployments, "router", "deployments of `serve`")["num_replicas"]
    router = {"replicas": replicas} | params["router"]
    computed = {"engines": engines, "machines": machines, "router": router}
    return {name: value for name, value in params.items() if name != "autoscaling"} | computed


def lookup(among: Mapping[str, Any], name: str, where: str) -> Any:
    """Return the entry `name` of `among`. The ValueError calls the mapping `where`."""
    if name not in among:
        raise ValueError(f"{name!r} is not one of the {where}. Choose from {', '.join(among)}.")
    return among[name]


def common_value(values: list[Any], what: str) -> Any:
    """Return the value that all `values` have in common. The ValueError calls them `what`."""
    if len(set(values)) != 1:
        remedy = "Give each worker its own engine in the inputs, or make the values equal."
        raise ValueError(
            f"{what} has different values in the cluster files: {', '.join(map(str, values))}. {remedy}"
        )
    return values[0]
