"""cluster/kubernetes as `kubectl` renders it, checked by the models of Kubernetes' client, which reject unknown
fields. test_kuberay.py checks the RayService of the GPU base.
"""

import copy
import re
import shutil
import subprocess
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.api.route_access import ROUTES, Who
from serving.settings.settings import parse
from tests.cluster.test_kuberay import INSIDE, SECURE, callers, groups, may_call
from tests.conftest import ROOT

FOLDER = ROOT / "cluster" / "kubernetes"
EXAMPLES = ("example-api", "example-gpu")
VERSIONS = {
    "ConfigMap": "v1", "Service": "v1", "PersistentVolumeClaim": "v1", "Deployment": "apps/v1", "StatefulSet": "apps/v1",
    "PodDisruptionBudget": "policy/v1", "NetworkPolicy": "networking.k8s.io/v1", "Ingress": "networking.k8s.io/v1",
}  # fmt: skip
Data = dict[str, Any]


@cache
def render(folder: Path) -> str:
    assert shutil.which("kubectl"), (
        "kubectl is not installed: 1.27 or newer is needed to render the manifests"
    )
    ended = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "deprecated" not in ended.stderr
    return ended.stdout


def rendered(name: str, within: Path = FOLDER) -> dict[tuple[str, str], Data]:
    objects = [each for each in yaml.safe_load_all(render(within / name)) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def edit(name: str, into: Path, *changes: tuple[str, str]) -> Path:
    """Copy the folder, replace texts in an example's kustomization, and return the copy."""
    copied = shutil.copytree(FOLDER, into / "kubernetes")
    file = copied / name / "kustomization.yaml"
    text = file.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    return copied


def pods_of_ours(name: str, objects: dict[tuple[str, str], Data]) -> list[Data]:
    """Return the templates of the pods that run our image."""
    if name == "example-api":
        return [objects["Deployment", "podium"]["spec"]["template"]]
    return [group["template"] for group in groups(objects["RayService", "podium"]["spec"])]


def model(kind: str) -> Any:
    from kubernetes import client

    return getattr(client, f"V1{kind}")


@pytest.fixture(scope="module")
def router() -> Data:
    return rendered("example-api")["Deployment", "podium"]["spec"]


@pytest.mark.parametrize("name", ["api", "gpu", *EXAMPLES])
def test_every_object_is_a_valid_kubernetes_object(name: str) -> None:
    objects = rendered(name)
    assert objects
    for (kind, _), each in objects.items():
        if kind != "RayService":
            assert each["apiVersion"] == VERSIONS[kind]
            model(kind).model_validate(each)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_examples_values_apply_to_every_object(name: str, tmp_path: Path) -> None:
    objects = rendered(name)
    assert {each["metadata"]["namespace"] for each in objects.values()} == {"podium"}
    ingress = objects["Ingress", "podium"]["spec"]
    assert ingress["tls"][0]["hosts"] == [ingress["rules"][0]["host"]] == ["podium.example.com"]
    copied = edit(
        name,
        tmp_path,
        ("newTag: 0.2.0", "newTag: 9.9.9"),
        ("newName: registry.example.com", "newName: mirror:5000/ours"),
        ("podium.example.com", "ask.example.org"),
        ("namespace: podium", "namespace: other"),
    )
    text = render(copied / name)
    images = re.findall(r"image: (\S*podium\S*)", text)
    assert images
    assert {re.sub(r"-ray", "", each) for each in images} == {"mirror:5000/ours/podium:9.9.9"}
    changed = [each for each in yaml.safe_load_all(text) if each]
    assert {each["metadata"]["namespace"] for each in changed} == {"other"}
    assert "podium.example.com" not in "".join(str(each) for each in changed if each["kind"] == "Ingress")


@pytest.mark.parametrize("name", ["api", "gpu", *EXAMPLES])
def test_our_images_have_the_version_of_the_project(name: str) -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert set(re.findall(r"image: registry\.example\.com/podium\S*:(\S+)", render(FOLDER / name))) == {
        version[1]
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_secret_is_referenced_and_never_written(name: str) -> None:
    assert "kind: Secret" not in render(FOLDER / name)
    assert not re.search(r"(AKIA|sk-|hf_|AIza)\w{8}", render(FOLDER / name))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_ingress_points_to_an_existing_service(name: str) -> None:
    objects = rendered(name)
    backend = objects["Ingress", "podium"]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    service = (
        objects["Service", backend["name"]]
        if name == "example-api"
        else objects["RayService", "podium"]["spec"]["serveService"]
    )
    assert service["metadata"]["name"] == backend["name"]
    assert backend["port"]["number"] in [port["port"] for port in service["spec"]["ports"]]


def test_every_selector_of_routers_matches_them(router: Data) -> None:
    objects = rendered("example-api")
    labels = router["template"]["metadata"]["labels"]
    pods = router["selector"]["matchLabels"]
    service = objects["Service", "podium-serve"]["spec"]
    budget = objects["PodDisruptionBudget", "podium-router"]["spec"]
    policy = objects["NetworkPolicy", "podium"]["spec"]
    for selector in (
        pods,
        service["selector"],
        budget["selector"]["matchLabels"],
        policy["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    ports = {
        port["name"]: port["containerPort"]
        for each in router["template"]["spec"]["containers"]
        for port in each["ports"]
    }
    assert ports[service["ports"][0]["targetPort"]] == 8000
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == set(ports.values())


def test_no_container_runs_as_root_or_gains_privileges(router: Data) -> None:
    pod = router["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    for each in (*pod["initContainers"], *pod["containers"]):
        assert each["securityContext"] == SECURE
        assert each["resources"]["requests"]["cpu"]
        assert each["resources"]["limits"]["memory"]


def test_routers_write_only_to_volumes_because_their_root_is_read_only(router: Data) -> None:
    pod = router["template"]["spec"]
    image = (ROOT / "cluster" / "Dockerfile").read_text()
    folders = set(re.findall(r"^ +(?:HOME|XDG_DATA_HOME)=(\S+)", image, re.MULTILINE))
    assert len(folders) == 1, "the folder of logs and caches"
    for each in (*pod["initContainers"], *pod["containers"]):
        assert folders | {"/tmp"} <= {mount["mountPath"] for mount in each["volumeMounts"]}
    assert all(
        each["emptyDir"]["sizeLimit"] for each in pod["volumes"] if each["name"] in ("data", "tmp", "shm")
    )


def test_probes_call_public_routes_at_the_port_of_the_api(router: Data) -> None:
    (container,) = router["template"]["spec"]["containers"]
    paths = {
        name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")
    }
    assert paths == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/healthz"}
    for name, path in paths.items():
        assert ROUTES[f"GET {path}"].who is Who.PUBLIC
        ask = container[f"{name}Probe"]["httpGet"]
        assert ask["port"] == "serve"
        assert ask["httpHeaders"] == [{"name": "Host", "value": "localhost"}], "http.hosts rejects others"


def test_an_update_waits_for_runs_and_never_reduces_the_number_of_routers(router: Data) -> None:
    assert router["replicas"] >= 2
    assert router["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    pod = router["template"]["spec"]
    (container,) = pod["containers"]
    wait_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    from cluster.local.server import STOP_WITHIN_S

    assert pod["terminationGracePeriodSeconds"] >= wait_s + STOP_WITHIN_S
    settings = parse(
        yaml.safe_load(rendered("example-api")["ConfigMap", "podium-settings"]["data"]["settings.yaml"])
    )
    assert settings.router.drain_s < STOP_WITHIN_S


def test_the_schema_is_migrated_before_a_router_starts_and_only_online(router: Data) -> None:
    first, second = router["template"]["spec"]["initContainers"]
    assert first["command"] == ["podium", "store", "migrate", "--online"]
    assert "podium keys list" in second["command"][2]


def test_the_examples_settings_are_valid_and_mounted_for_the_router(router: Data) -> None:
    settings = rendered("example-api")["ConfigMap", "podium-settings"]["data"]["settings.yaml"]
    read = parse(yaml.safe_load(settings))
    assert read.http.hosts == ("podium.example.com",)
    (container,) = router["template"]["spec"]["containers"]
    path = Path(container["command"][container["command"].index("--settings") + 1])
    mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in router["template"]["spec"]["volumes"]}
    assert volumes[mounted[str(path.parent)]]["configMap"]["name"] == "podium-settings"
    assert path.name == "settings.yaml"
    for name in ("router", "schema", "first-key"):
        every = [*router["template"]["spec"]["containers"], *router["template"]["spec"]["initContainers"]]
        (one,) = [each for each in every if each["name"] == name]
        assert all(each["name"] in volumes for each in one["volumeMounts"])


def test_routers_can_call_only_the_internal_addresses_that_they_need(router: Data) -> None:
    base = copy.deepcopy([each for (kind, _), each in rendered("api").items() if kind == "NetworkPolicy"])
    labels = router["template"]["metadata"]["labels"]
    ports = (80, 443, 5432, 6379, 8000)
    assert [(to, port) for to in INSIDE for port in ports if may_call(base, labels, to, port)] == []
    assert may_call(base, labels, "104.18.7.192", 443)
    assert may_call(base, labels, "2606:4700::6812:7c0", 443)
    example = [each for (kind, _), each in rendered("example-api").items() if kind == "NetworkPolicy"]
    assert may_call(example, labels, "10.20.30.40", 5432)
    assert not may_call(example, labels, "10.20.30.41", 5432)
    assert ip_address("10.20.30.40").is_private


@pytest.mark.parametrize("name", EXAMPLES)
def test_only_the_namespaces_of_the_example_may_call_podium(name: str, tmp_path: Path) -> None:
    ports = callers(rendered(name)["NetworkPolicy", "podium"]["spec"])
    assert "traefik" in ports[8000]
    assert ports[9091] == {"monitoring"}
    copied = edit(name, tmp_path, (": traefik}}", ": edge}}"), (": monitoring}}", ": watch}}"))
    other = callers(rendered(name, copied)["NetworkPolicy", "podium"]["spec"])
    assert other[8000] == ports[8000] - {"traefik"} | {"edge"}
    assert other[9091] == {"watch"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_commented_patch_adds_registry_credentials_to_every_pod_of_our_image(
    name: str, tmp_path: Path
) -> None:
    comment = (
        (FOLDER / name / "kustomization.yaml").read_text().partition("# Credentials of a private registry")[2]
    )
    _, block = comment.split("\n", 1)
    copied = edit(name, tmp_path, (block, block.replace("  # ", "  ")))
    pods = pods_of_ours(name, rendered(name, copied))
    assert [pod["spec"]["imagePullSecrets"] for pod in pods] == [[{"name": "registry"}]] * len(pods)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_pod_monitor_selects_every_pod_and_names_its_metrics_port(name: str, tmp_path: Path) -> None:
    objects = rendered(name, edit(name, tmp_path, ("# - ../pod-monitor", "- ../pod-monitor")))
    monitor = objects["PodMonitor", "podium"]["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    for pod in pods_of_ours(name, objects):
        assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        (container,) = pod["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert str(ports[endpoint["port"]]) == pod["metadata"]["annotations"]["prometheus.io/port"]
    (scrape,) = yaml.safe_load((ROOT / "cluster" / "prometheus.yaml").read_text())["scrape_configs"]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": scrape["job_name"]}]
    labels = {"sourceLabels": "source_labels"}
    rules = [
        {labels.get(key, key): value for key, value in each.items()} for each in endpoint["metricRelabelings"]
    ]
    assert rules == scrape["metric_relabel_configs"]
