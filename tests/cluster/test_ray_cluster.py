"""Cluster files by Ray's own schema and checks, without a cloud, and what the three of them have in common."""

import copy
import inspect
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.version import Version

from serving.settings.settings import load

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "aws": ROOT / "ray_cluster.yaml",
    "gcp": ROOT / "cluster" / "ray_cluster.gcp.yaml",
    "local": ROOT / "cluster" / "ray_cluster.onprem.yaml",
}
CLOUDS = ("aws", "gcp")


def read(provider: str) -> dict[str, Any]:
    return yaml.safe_load(FILES[provider].read_text())


@pytest.fixture(params=FILES)
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    return read(request.param)


@pytest.fixture(params=CLOUDS)
def cloud(request: pytest.FixtureRequest) -> dict[str, Any]:
    return read(request.param)


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    import ray.autoscaler

    return json.loads(Path(inspect.getfile(ray.autoscaler)).with_name("ray-schema.json").read_text())


def prepared(config: dict[str, Any]) -> dict[str, Any]:
    """Return `config` as `ray up` has it before it calls a cloud: with defaults, validated by Ray."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    whole = prepare_config(copy.deepcopy(config))
    validate_config({**whole, "cluster_synced_files": whole.get("cluster_synced_files", [])})
    return whole


def node_types(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("available_node_types") or config["provider"]["node_types"]


def variables(config: dict[str, Any]) -> dict[str, str]:
    return dict(re.findall(r"-e (\w+)=(\S+)", " ".join(config["docker"]["run_options"])))


def images(config: dict[str, Any]) -> set[str]:
    dockers = [config["docker"], *(node.get("docker", {}) for node in node_types(config).values())]
    return {docker[key] for docker in dockers for key in docker if key.endswith("image")}


def fetched(config: dict[str, Any]) -> list[str]:
    loop = re.search(r"for name in ([A-Z_ ]+);", " ".join(config["initialization_commands"]))
    assert loop
    return loop[1].split()


# Ray's own checks


def test_the_file_is_valid_by_rays_schema(config: dict[str, Any], schema: dict[str, Any]) -> None:
    jsonschema.validate(config, schema)


def test_ray_accepts_the_file_with_its_defaults(config: dict[str, Any]) -> None:
    whole = prepared(config)
    assert whole["provider"]["type"] == config["provider"]["type"]
    assert whole["max_workers"] >= sum(node["max_workers"] for node in node_types(config).values())


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (("idle_timeout_minute",), 5),
        (("docker", "images"), "rayproject/ray"),
        (("available_node_types", "head", "max_worker"), 1),
        (("available_node_types", "head", "resources", "CPU"), "none"),
        (("head_node_type",), "heat"),
    ],
)
def test_a_wrong_key_is_an_error(cloud: dict[str, Any], place: tuple[str, ...], wrong: object) -> None:
    inner = cloud
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = wrong
    with pytest.raises((jsonschema.ValidationError, ValueError)):
        prepared(cloud)


def test_accelerators_have_rays_names(config: dict[str, Any]) -> None:
    from ray.util.accelerators import accelerators

    names = {value for name, value in vars(accelerators).items() if name.startswith("NVIDIA")}
    used = {key for node in node_types(config).values() for key in node["resources"] if ":" in key}
    assert used
    assert {key.removeprefix("accelerator_type:") for key in used} <= names


def test_serve_variables_exist_in_ray(config: dict[str, Any]) -> None:
    from ray.serve._private import constants

    names = [name for name in variables(config) if name.startswith("RAY_SERVE_")]
    assert "RAY_SERVE_ENABLE_HA_PROXY" in names
    source = inspect.getsource(constants)
    assert all(f'"{name}"' in source for name in names)


def test_ray_rotates_every_file_that_it_writes(config: dict[str, Any]) -> None:
    """Without the variable, a worker's output grows without limit."""
    from ray._private.workers import default_worker

    assert {"RAY_ROTATION_MAX_BYTES", "RAY_ROTATION_BACKUP_COUNT"} <= variables(config).keys()
    assert "RAY_ROTATION_MAX_BYTES" in Path(default_worker.__file__).read_text()


def test_images_are_pinned_to_the_ray_of_this_project(config: dict[str, Any]) -> None:
    import ray

    tags = [
        re.fullmatch(r"rayproject/ray(?:-llm)?:([\d.]+)-(py3\d+)(?:-\w+)?", image) for image in images(config)
    ]
    assert len(tags) == 2
    assert all(tags)
    assert {Version(tag[1]) for tag in tags if tag} == {Version(ray.__version__)}
    assert len({tag[2] for tag in tags if tag}) == 1, "one Python in all containers"


# Required values


def test_the_head_runs_no_replicas(cloud: dict[str, Any]) -> None:
    assert cloud["available_node_types"][cloud["head_node_type"]]["resources"] == {"CPU": 0}


def test_the_head_of_a_local_cluster_runs_no_replicas() -> None:
    started = " ".join(read("local")["head_start_ray_commands"])
    assert "--num-cpus=0 --num-gpus=0" in started


def test_gpu_nodes_scale_from_zero(cloud: dict[str, Any]) -> None:
    gpu = [node for node in node_types(cloud).values() if node["resources"].get("GPU")]
    assert len(gpu) == 2
    assert all(node["min_workers"] == 0 < node["max_workers"] for node in gpu)


def test_a_local_cluster_has_one_worker_per_address() -> None:
    provider = read("local")["provider"]
    assert sum(node["max_workers"] for node in provider["node_types"].values()) == len(provider["worker_ips"])
    assert len({provider["head_ip"], *provider["worker_ips"]}) == len(provider["worker_ips"]) + 1


def test_each_pool_has_its_own_resource(config: dict[str, Any]) -> None:
    pools = {name: node["resources"] for name, node in node_types(config).items() if name != "head"}
    for pool, mark in {"router": "router_node", "gpu_24gb": "gpu_24gb", "gpu_48gb": "gpu_48gb"}.items():
        assert [name for name, resources in pools.items() if mark in resources] == [pool]


def test_only_the_large_gpu_pool_is_spot() -> None:
    aws = [n for n, node in node_types(read("aws")).items() if "InstanceMarketOptions" in node["node_config"]]
    gcp = [
        name
        for name, node in node_types(read("gcp")).items()
        if node["node_config"].get("scheduling", {}).get("provisioningModel") == "SPOT"
    ]
    assert aws == gcp == ["gpu_48gb"]


def test_gpus_on_google_cloud_stop_for_maintenance() -> None:
    gpu_nodes = [node for node in node_types(read("gcp")).values() if node["resources"].get("GPU")]
    assert gpu_nodes
    for node in gpu_nodes:
        assert node["node_config"]["scheduling"]["onHostMaintenance"] == "TERMINATE"


def test_gpu_nodes_install_the_lock_of_the_gpu_extra(config: dict[str, Any]) -> None:
    own = [node for node in node_types(config).values() if node["resources"].get("GPU")]
    assert own
    for node in own:
        commands = node.get("worker_setup_commands", config.get("worker_setup_commands", []))
        assert any("requirements/image_gpu.lock" in command for command in commands)


def test_weights_are_stored_on_the_machines_disk(config: dict[str, Any]) -> None:
    workers = [config["docker"], *(node.get("docker", {}) for node in node_types(config).values())]
    options = [" ".join(worker["worker_run_options"]) for worker in workers if "worker_run_options" in worker]
    assert options
    assert all(re.search(r"-v \S+:/models ", option) and "HF_HOME=/models" in option for option in options)


def test_a_proxy_reload_does_not_interrupt_a_run(config: dict[str, Any]) -> None:
    hard_stop_s = int(variables(config)["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"])
    assert hard_stop_s > load(ROOT / "cluster" / "gpu.yaml").limits.default_deadline_s


@pytest.mark.parametrize("provider", FILES)
def test_nothing_is_public_and_the_file_contains_no_key(provider: str) -> None:
    config, text = read(provider), FILES[provider].read_text()
    assert provider == "local" or config["provider"]["use_internal_ips"]
    assert not re.search(r"(?<![\d.])0\.0\.0\.0", text)
    assert "--dashboard-host=127.0.0.1" in " ".join(config["head_start_ray_commands"])
    assert variables(config)["RAY_AUTH_MODE"] == "token"
    assert config["file_mounts"]["/home/ray/.ray/auth_token"] == "~/.ray/auth_token"
    assert not re.search(r"(AKIA|sk-|hf_|AIza)\w{8}", text)


def test_every_google_node_has_a_private_interface() -> None:
    for node in node_types(read("gcp")).values():
        assert [set(interface) for interface in node["node_config"]["networkInterfaces"]] == [{"subnetwork"}]


def test_workers_may_read_the_keys_they_fetch() -> None:
    for cloud, field in {"aws": "IamInstanceProfile", "gcp": "serviceAccounts"}.items():
        nodes = node_types(read(cloud))
        assert [name for name, node in nodes.items() if field not in node["node_config"]] == ["head"]


def test_only_the_load_balancer_can_connect_from_outside() -> None:
    rules = read("aws")["provider"]["security_group"]["IpPermissions"]
    assert {rule["FromPort"] for rule in rules} == {rule["ToPort"] for rule in rules} == {8000, 9091}
    assert {each["CidrIp"] for rule in rules for each in rule["IpRanges"]} == {"10.0.0.0/16"}


# Common to all


def test_the_three_have_the_same_pools_images_variables_and_keys() -> None:
    aws = read("aws")
    for provider in FILES:
        other = read(provider)
        assert node_types(other).keys() - {"head"} == node_types(aws).keys() - {"head"}
        assert images(other) == images(aws)
        assert variables(other) == variables(aws)
        assert fetched(other) == fetched(aws)
        assert other["rsync_exclude"] == aws["rsync_exclude"]
        assert other["file_mounts"] == aws["file_mounts"]


def test_ray_listens_on_the_same_addresses_in_all_clusters() -> None:
    """tests/live/test_two_nodes.py checks the sockets of `onprem` only."""
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        started = {provider: listening_options(read(provider)[key][-1]) for provider in FILES}
        assert len(set(map(frozenset, started.values()))) == 1, started


def listening_options(command: str) -> set[str]:
    """Return the options of `ray start` except those for a node's resources."""
    options = command.partition("ray start ")[2].split(" --")
    named = {option.strip().removeprefix("--") for option in options}
    return {each for each in named if not each.startswith(("num-", "resources="))}


def test_the_two_clouds_have_equal_numbers_of_nodes_per_pool() -> None:
    aws, gcp = (node_types(read(cloud)) for cloud in CLOUDS)
    for name in aws:
        for key in ("min_workers", "max_workers"):
            assert aws[name][key] == gcp[name][key], name
    for key in (
        "max_workers",
        "idle_timeout_minutes",
        "head_start_ray_commands",
        "worker_start_ray_commands",
    ):
        assert read("aws")[key] == read("gcp")[key]


def test_ray_starts_from_the_checkout_everywhere(config: dict[str, Any]) -> None:
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert config[key][-1].startswith("cd /home/ray/podium && ray start ")
        assert "--metrics-export-port=9091" in config[key][-1]
