"""ray_cluster.yaml by Ray's own schema and checks, as far as they go without AWS, and against what is to run on it."""

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

from serving.settings import load
from serving.worker_settings import VllmSettings

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "ray_cluster.yaml"


@pytest.fixture
def config() -> dict[str, Any]:
    return yaml.safe_load(PATH.read_text())


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    import ray.autoscaler

    return json.loads(Path(inspect.getfile(ray.autoscaler)).with_name("ray-schema.json").read_text())


def prepared(config: dict[str, Any]) -> dict[str, Any]:
    """`config` as `ray up` has it before it asks AWS: defaults filled in, then checked by Ray."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    whole = prepare_config(copy.deepcopy(config))
    validate_config({**whole, "cluster_synced_files": whole.get("cluster_synced_files", [])})
    return whole


def test_it_is_valid_by_the_schema_that_ray_ships(config: dict[str, Any], schema: dict[str, Any]) -> None:
    jsonschema.validate(config, schema)


def test_ray_fills_in_and_accepts_it(config: dict[str, Any]) -> None:
    whole = prepared(config)
    assert whole["provider"]["type"] == "aws"
    assert whole["available_node_types"]["head"]["max_workers"] == 0


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
def test_a_wrong_key_is_found(config: dict[str, Any], place: tuple[str, ...], wrong: object) -> None:
    inner = config
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = wrong
    with pytest.raises((jsonschema.ValidationError, ValueError)):
        prepared(config)


def test_the_head_runs_no_replicas(config: dict[str, Any]) -> None:
    assert config["available_node_types"][config["head_node_type"]]["resources"] == {"CPU": 0}


def test_gpu_nodes_come_and_go(config: dict[str, Any]) -> None:
    gpu = [node for node in config["available_node_types"].values() if node["resources"].get("GPU")]
    assert gpu
    assert all(node["min_workers"] == 0 < node["max_workers"] for node in gpu)
    assert (
        sum(node["max_workers"] for node in config["available_node_types"].values()) <= config["max_workers"]
    )


def test_the_router_is_never_on_spot(config: dict[str, Any]) -> None:
    assert "InstanceMarketOptions" not in config["available_node_types"]["router"]["node_config"]


def test_every_engine_of_the_gpu_settings_has_a_node_it_fits(config: dict[str, Any]) -> None:
    nodes = [node["resources"] for node in config["available_node_types"].values()]
    for worker in load(ROOT / "cluster" / "gpu.yaml").workers:
        if isinstance(worker, VllmSettings) and not worker.deployment:
            kind = f"accelerator_type:{worker.scale.accelerator_type}"
            scale = worker.scale
            fits = [n for n in nodes if kind in n and n["GPU"] >= scale.gpus and n["CPU"] >= scale.num_cpus]
            assert fits, worker.name


def test_accelerators_are_named_as_ray_names_them(config: dict[str, Any]) -> None:
    from ray.util.accelerators import accelerators

    names = {value for name, value in vars(accelerators).items() if name.startswith("NVIDIA")}
    used = {
        key for node in config["available_node_types"].values() for key in node["resources"] if ":" in key
    }
    assert {key.removeprefix("accelerator_type:") for key in used} <= names


def test_the_router_of_the_serve_config_has_its_node(config: dict[str, Any]) -> None:
    serve = yaml.safe_load((ROOT / "cluster" / "gpu.serve.yaml").read_text())
    wanted = serve["applications"][0]["deployments"][0]["ray_actor_options"]["resources"]
    assert wanted.keys() <= config["available_node_types"]["router"]["resources"].keys()


def test_images_are_pinned_to_the_ray_of_this_project(config: dict[str, Any]) -> None:
    import ray

    images = [config["docker"]["image"]]
    images += [n["docker"]["worker_image"] for n in config["available_node_types"].values() if "docker" in n]
    tags = [re.fullmatch(r"rayproject/ray(?:-llm)?:([\d.]+)-(py3\d+)(?:-\w+)?", image) for image in images]
    assert all(tags)
    assert {Version(tag[1]) for tag in tags if tag} == {Version(ray.__version__)}
    assert len({tag[2] for tag in tags if tag}) == 1, "one Python in all containers"


def test_serve_variables_are_set_on_all_nodes_and_exist_in_ray(config: dict[str, Any]) -> None:
    from ray.serve._private import constants

    options = " ".join(config["docker"]["run_options"])
    names = re.findall(r"-e (RAY_SERVE_\w+)=", options)
    assert "RAY_SERVE_ENABLE_HA_PROXY" in names
    source = inspect.getsource(constants)
    assert all(f'"{name}"' in source for name in names)
    assert "-e RAY_AUTH_MODE=token" in options


def test_a_proxy_reload_does_not_cut_a_run(config: dict[str, Any]) -> None:
    options = " ".join(config["docker"]["run_options"])
    hard_stop = re.search(r"RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S=(\d+)", options)
    assert hard_stop
    assert int(hard_stop[1]) > load(ROOT / "cluster" / "gpu.yaml").limits.default_deadline_s


def test_nothing_is_public_and_no_key_is_in_it(config: dict[str, Any]) -> None:
    assert config["provider"]["use_internal_ips"]
    assert "0.0.0.0" not in PATH.read_text()
    assert "--dashboard-host=127.0.0.1" in " ".join(config["head_start_ray_commands"])
    assert not re.search(r"(AKIA|sk-|hf_)\w{8}", PATH.read_text())


def test_gpu_nodes_install_the_gpu_extra(config: dict[str, Any]) -> None:
    for node in config["available_node_types"].values():
        if node["resources"].get("GPU"):
            assert any("[gpu]" in command for command in node["worker_setup_commands"])
