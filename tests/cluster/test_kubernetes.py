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

from serving.settings.settings import parse
from tests.cluster.test_kuberay import INSIDE, may_call
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


def rendered(name: str) -> dict[tuple[str, str], Data]:
    objects = [each for each in yaml.safe_load_all(render(FOLDER / name)) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


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
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    file = tmp_path / "kubernetes" / name / "kustomization.yaml"
    file.write_text(
        file.read_text()
        .replace("newTag: 0.2.0", "newTag: 9.9.9")
        .replace("newName: registry.example.com", "newName: mirror:5000/ours")
        .replace("podium.example.com", "ask.example.org")
        .replace("namespace: podium", "namespace: other")
    )
    text = render(file.parent)
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
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert each["resources"]["limits"]["memory"]


def test_an_update_waits_for_runs_and_never_reduces_the_number_of_routers(router: Data) -> None:
    assert router["replicas"] >= 2
    assert router["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    pod = router["template"]["spec"]
    (container,) = pod["containers"]
    wait_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    from cluster.local.server import STOP_WITHIN_S

    assert pod["terminationGracePeriodSeconds"] >= wait_s + STOP_WITHIN_S


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
