"""cluster/kubernetes/gpu/ without a cluster: core objects by the models of Kubernetes' client, which reject unknown
fields, and the RayService by KubeRay's field names, the autoscaler in Ray's wheel and Ray Serve's schema.
"""

import copy
import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from podium.doctor.cluster import machines
from serving.settings.settings import load

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "cluster" / "kubernetes" / "gpu"
Data = dict[str, Any]
SECURE = {
    "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
}  # fmt: skip

# KubeRay's fields that a RayService may have: `json` tags of RayServiceSpec,
# ClusterUpgradeOptions, RayClusterSpec, AuthOptions, GcsFaultToleranceOptions, RedisCredential,
# AutoscalerOptions, HeadGroupSpec and WorkerGroupSpec in ray-operator/apis/ray/v1/ rayservice_types.go and
# raycluster_types.go of ray-project/kuberay (1.7; read 2026-11-21). Its CRD is in no package.
SPEC = {
    "upgradeStrategy", "rayClusterDeletionDelaySeconds", "excludeHeadPodFromServeSvc", "serveService", "serveConfigV2",
    "rayClusterConfig",
}  # fmt: skip
UPGRADE = {"gatewayClassName", "maxSurgePercent", "stepSizePercent", "intervalSeconds"}
CLUSTER = {
    "upgradeStrategy", "authOptions", "suspend", "managedBy", "autoscalerOptions", "headServiceAnnotations",
    "enableInTreeAutoscaling", "gcsFaultToleranceOptions", "networkPolicy", "tlsOptions", "headGroupSpec", "rayVersion",
    "workerGroupSpecs", "historyServerOptions",
}  # fmt: skip
AUTH = {"mode", "secretName", "enableK8sTokenAuth"}
GCS = {"backend", "redisAddress", "redisUsername", "redisPassword", "externalStorageNamespace", "storage"}
AUTOSCALER = {
    "version", "idleTimeoutSeconds", "upscalingMode", "resources", "image", "imagePullPolicy", "securityContext", "env",
    "envFrom", "volumeMounts",
}  # fmt: skip
HEAD = {"rayStartParams", "template", "headService", "enableIngress", "serviceType", "labels", "resources"}
WORKER = {
    "groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "idleTimeoutSeconds", "rayStartParams", "template",
    "scaleStrategy", "suspend", "labels", "resources",
}  # fmt: skip


def documents(name: str) -> list[Data]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


@pytest.fixture
def spec() -> Data:
    (service,) = documents("rayservice.yaml")
    assert (service["apiVersion"], service["kind"]) == ("ray.io/v1", "RayService")
    return service["spec"]


def groups(spec: Data) -> list[Data]:
    return [spec["rayClusterConfig"]["headGroupSpec"], *spec["rayClusterConfig"]["workerGroupSpecs"]]


def container(group: Data) -> Data:
    (only,) = group["template"]["spec"]["containers"]
    return only


def check_fields(data: Data, fields: set[str]) -> None:
    assert data.keys() <= fields, data.keys() - fields


def model(kind: str) -> Any:
    from kubernetes import client

    return getattr(client, f"V1{kind}")


# Fields


def test_the_rayservice_has_only_fields_of_kuberay(spec: Data) -> None:
    cluster = spec["rayClusterConfig"]
    check_fields(spec, SPEC)
    check_fields(spec["upgradeStrategy"], {"type", "clusterUpgradeOptions"})
    check_fields(spec["upgradeStrategy"]["clusterUpgradeOptions"], UPGRADE)
    check_fields(cluster, CLUSTER)
    check_fields(cluster["authOptions"], AUTH)
    check_fields(cluster["gcsFaultToleranceOptions"], GCS)
    check_fields(cluster["gcsFaultToleranceOptions"]["redisPassword"], {"value", "valueFrom"})
    check_fields(cluster["autoscalerOptions"], AUTOSCALER)
    check_fields(cluster["headGroupSpec"], HEAD)
    for group in cluster["workerGroupSpecs"]:
        check_fields(group, WORKER)


def test_its_pods_and_services_are_valid_kubernetes_objects(spec: Data) -> None:
    for group in groups(spec):
        model("PodTemplateSpec").model_validate(group["template"])
    model("Service").model_validate(spec["serveService"])
    model("ResourceRequirements").model_validate(spec["rayClusterConfig"]["autoscalerOptions"]["resources"])
    password = spec["rayClusterConfig"]["gcsFaultToleranceOptions"]["redisPassword"]
    model("EnvVarSource").model_validate(password["valueFrom"])


@pytest.mark.parametrize("name", ["redis.yaml", "support.yaml"])
def test_every_other_object_is_a_valid_kubernetes_object(name: str) -> None:
    versions = {
        "Service": "v1", "PersistentVolumeClaim": "v1", "StatefulSet": "apps/v1", "PodDisruptionBudget": "policy/v1",
        "NetworkPolicy": "networking.k8s.io/v1",
    }  # fmt: skip
    for each in documents(name):
        assert each["apiVersion"] == versions[each["kind"]]
        model(each["kind"]).model_validate(each)


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (("spec", "nodeSelectors"), {}),
        (("spec", "containers", 0, "resources", "limit"), {}),
        (("spec", "containers", 0, "env", 0, "val"), "1"),
        (("spec", "containers", 0, "securityContext", "runAsRoot"), False),
        (("spec", "activeDeadlineSeconds"), "long"),
    ],
)
def test_an_unknown_field_of_a_pod_is_an_error(
    spec: Data, place: tuple[str | int, ...], wrong: object
) -> None:
    template = copy.deepcopy(groups(spec)[1]["template"])
    inner: Any = template
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = wrong
    with pytest.raises(ValidationError):
        model("PodTemplateSpec").model_validate(template)


def test_rays_autoscaler_derives_the_same_node_groups_as_the_check(spec: Data) -> None:
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    cluster = {"metadata": {"name": "podium", "namespace": "podium"}, "spec": spec["rayClusterConfig"]}
    derived = _derive_autoscaling_config_from_ray_cr(cluster)
    types = derived["available_node_types"]
    ours = machines.read(FOLDER / "rayservice.yaml")
    assert types[derived["head_node_type"]]["resources"]["CPU"] == 0
    for node in ours.workers:
        read = types[node.name]
        assert (read["min_workers"], read["max_workers"]) == (node.min_nodes, node.max_nodes)
        resources = {key: amount for key, amount in read["resources"].items() if key != "memory"}
        assert resources == {key: int(amount) for key, amount in node.resources.items()}


# Serve


def test_the_rayservice_has_the_same_serve_config_as_the_other_clusters(spec: Data) -> None:
    text = spec["serveConfigV2"]
    assert yaml.safe_load(text) == yaml.safe_load((ROOT / "cluster" / "gpu.serve.yaml").read_text())
    assert not re.search(r"[&*]\w|<<:", text), (
        "anchors are written out: another YAML reader parses this string"
    )


def test_ray_serve_accepts_the_serve_config(spec: Data) -> None:
    from ray.serve.schema import ServeDeploySchema

    parsed = ServeDeploySchema.model_validate(yaml.safe_load(spec["serveConfigV2"]))
    assert [application.name for application in parsed.applications] == ["podium"]


def test_the_old_cluster_outlives_its_longest_run(spec: Data) -> None:
    assert spec["upgradeStrategy"]["type"] == "NewClusterWithIncrementalUpgrade"
    assert spec["rayClusterConfig"]["enableInTreeAutoscaling"], "the incremental upgrade wants the autoscaler"
    assert spec["rayClusterDeletionDelaySeconds"] > load(ROOT / "cluster/gpu.yaml").limits.default_deadline_s


# Required values


def test_the_head_runs_no_replicas(spec: Data) -> None:
    assert groups(spec)[0]["rayStartParams"]["num-cpus"] == "0"
    assert spec["excludeHeadPodFromServeSvc"]


def test_head_and_workers_have_the_same_variables_as_the_other_clusters(spec: Data) -> None:
    environments = [container(group)["env"] for group in groups(spec)]
    assert all(each == environments[0] for each in environments)
    here = {entry["name"]: entry.get("value") for entry in environments[0]}
    there = machines.read(ROOT / "ray_cluster.yaml").environment
    assert here.keys() - {"RAY_USAGE_STATS_ENABLED"} == there.keys() - {"RAY_AUTH_MODE"}
    assert all(here[name] == value for name, value in there.items() if value and name in here)
    assert spec["rayClusterConfig"]["authOptions"]["mode"] == "token"


def test_secrets_are_referenced_and_never_written(spec: Data) -> None:
    entries = [entry for group in groups(spec) for entry in container(group)["env"]]
    secret = [entry for entry in entries if entry["name"].endswith(("_KEY", "_TOKEN"))]
    assert len(secret) == 4 * len(groups(spec))
    assert all("secretKeyRef" in entry["valueFrom"] and "value" not in entry for entry in secret)
    text = "".join(path.read_text() for path in FOLDER.iterdir())
    assert "kind: Secret" not in text
    assert not re.search(r"(AKIA|sk-|hf_|AIza)\w{8}", text)


def test_no_container_runs_as_root_and_images_are_pinned(spec: Data) -> None:
    pods = [group["template"]["spec"] for group in groups(spec)]
    pods += [
        each["spec"]["template"]["spec"] for each in documents("redis.yaml") if each["kind"] == "StatefulSet"
    ]
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] > 0
        for each in pod["containers"]:
            assert each["securityContext"] == SECURE
            pinned = r":\d+\.\d+\.\d+(-\w+@sha256:[0-9a-f]{64})?$"
            assert re.search(pinned, each["image"]), "the example sets the digest of our image"
            assert (
                each["resources"]["requests"]["memory"] == each["resources"]["limits"]["memory"]
                or "redis" in each["image"]
            )


def test_pods_write_only_to_volumes_because_their_root_is_read_only(spec: Data) -> None:
    options = spec["rayClusterConfig"]["autoscalerOptions"]
    assert options["securityContext"] == SECURE
    for group in groups(spec):
        one = container(group)
        places = {mount["mountPath"] for mount in one["volumeMounts"]}
        assert {"/tmp", "/home/ray/.cache"} <= places, "Ray's session and HAProxy; caches"
        if "nvidia.com/gpu" in one["resources"]["limits"]:
            compiled = {"/models", "/home/ray/.config", "/home/ray/.triton", "/home/ray/.nv"}
            assert compiled <= places, "weights, vLLM's folder, and the caches of compiled kernels"
        assert one["resources"]["limits"]["ephemeral-storage"], "it limits the volume"
        volumes = {each["name"] for each in group["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in one["volumeMounts"]} == volumes
    head = {each["name"] for each in groups(spec)[0]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in options["volumeMounts"]} <= head, "the autoscaler is in the head's pod"


def test_only_the_head_has_a_token_of_the_kubernetes_api(spec: Data) -> None:
    pods = {group.get("groupName", "head"): group["template"]["spec"] for group in groups(spec)}
    assert {name for name, pod in pods.items() if pod["automountServiceAccountToken"]} == {"head"}


def test_every_pod_names_the_port_of_its_metrics(spec: Data) -> None:
    for group in groups(spec):
        port = group["rayStartParams"]["metrics-export-port"]
        assert {"name": "metrics", "containerPort": int(port)} in container(group)["ports"]
        scraped = group["template"]["metadata"]["annotations"]
        assert scraped == {"prometheus.io/scrape": "true", "prometheus.io/port": port}


def test_gpu_pods_request_gpus_tolerate_their_nodes_and_persist_weights(spec: Data) -> None:
    gpu = [group for group in groups(spec) if "nvidia.com/gpu" in container(group)["resources"]["limits"]]
    claims = {
        each["metadata"]["name"]
        for each in documents("support.yaml")
        if each["kind"] == "PersistentVolumeClaim"
    }
    assert len(gpu) == 2
    for group in gpu:
        pod = group["template"]["spec"]
        assert group["minReplicas"] == 0
        assert "nvidia.com/gpu" in {each["key"] for each in pod["tolerations"]}
        assert pod["nodeSelector"]
        volumes = {each["name"]: each for each in pod["volumes"]}
        mounted = {each["mountPath"]: volumes[each["name"]] for each in container(group)["volumeMounts"]}
        assert mounted["/models"]["persistentVolumeClaim"]["claimName"] in claims
        assert mounted["/dev/shm"]["emptyDir"]["medium"] == "Memory"  # for tensor parallelism


def test_every_pool_has_a_disruption_budget_that_selects_it(spec: Data) -> None:
    budgets = [each for each in documents("support.yaml") if each["kind"] == "PodDisruptionBudget"]
    chosen = [each["spec"]["selector"]["matchLabels"] for each in budgets]
    for group in groups(spec):
        labels = group["template"]["metadata"]["labels"]
        assert sum(selector.items() <= labels.items() for selector in chosen) == 1, labels
    router = next(each["spec"] for each in budgets if each["metadata"]["name"] == "podium-router")
    least = next(group["minReplicas"] for group in groups(spec)[1:] if group["groupName"] == "router")
    assert router["minAvailable"] < least, "a drain must be able to go on"


def test_no_service_is_exposed_outside_the_cluster(spec: Data) -> None:
    services = [
        spec["serveService"],
        *(each for each in documents("redis.yaml") if each["kind"] == "Service"),
    ]
    assert all(each["spec"].get("type", "ClusterIP") == "ClusterIP" for each in services)
    policies = {
        each["metadata"]["name"]: each["spec"]
        for each in documents("support.yaml")
        if each["kind"] == "NetworkPolicy"
    }
    assert callers(policies["podium"]) == {
        8000: {
            "traefik",
            "podSelector gateway.networking.k8s.io/gateway-name",
            "podSelector kuberay-operator",
        },
        9091: {"monitoring"},
        8265: {"podSelector kuberay-operator"},
        None: {"podSelector podium"},
    }
    assert callers(policies["podium-redis"]) == {6379: {"podSelector podium"}}


def callers(policy: Data) -> dict[int | None, set[str]]:
    """Return who may open connections to each port of a policy's pods: a namespace, or the label of a pod.

    None stands for all ports.
    """
    names: dict[int | None, set[str]] = {}
    for rule in policy["ingress"]:
        for port in rule.get("ports", [{"port": None}]):
            names.setdefault(port["port"], set()).update(map(_caller, rule["from"]))
    return names


def _caller(peer: Data) -> str:
    if "podSelector" in peer:
        chosen = peer["podSelector"]
        (label,) = chosen.get("matchLabels", {}).values() or [
            each["key"] for each in chosen["matchExpressions"]
        ]
        return f"podSelector {label}"
    return peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]


def may_call(policies: list[Data], labels: Data, address: str, port: int) -> bool:
    """Return whether a pod with `labels` may open a TCP connection to an address outside the cluster."""
    chosen = [
        p["spec"] for p in policies if p["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    ]
    bound = [spec for spec in chosen if "Egress" in spec["policyTypes"]]
    rules = [rule for spec in bound for rule in spec["egress"]]
    return not bound or any(
        {"protocol": "TCP", "port": port} in rule.get("ports", [{"protocol": "TCP", "port": port}])
        and any(_is_in(ip_address(address), peer["ipBlock"]) for peer in rule["to"] if "ipBlock" in peer)
        for rule in rules
    )


def _is_in(address: IPv4Address | IPv6Address, block: Data) -> bool:
    return address in ip_network(block["cidr"]) and not any(
        address in ip_network(each) for each in block.get("except", [])
    )


INSIDE = [
    "169.254.169.254", "fd00:ec2::254", "fe80::1", "127.0.0.1", "::1", "10.0.0.1", "172.20.0.1", "192.168.1.1",
    "100.100.100.200", "::ffff:169.254.169.254",
]  # fmt: skip


def test_worker_pods_cannot_call_metadata_services_or_internal_addresses(spec: Data) -> None:
    policies = [each for each in documents("support.yaml") if each["kind"] == "NetworkPolicy"]
    for group in groups(spec)[1:]:
        labels = group["template"]["metadata"]["labels"]
        ports = (80, 443, 6379, 8000, 8265, 44217)
        assert [(to, port) for to in INSIDE for port in ports if may_call(policies, labels, to, port)] == []


def test_pods_can_call_the_services_that_they_need(spec: Data) -> None:
    policies = [each for each in documents("support.yaml") if each["kind"] == "NetworkPolicy"]
    head, *workers = [group["template"]["metadata"]["labels"] for group in groups(spec)]
    for labels in workers:
        assert may_call(policies, labels, "104.18.7.192", 443)
        assert may_call(policies, labels, "2606:4700::6812:7c0", 443)
        assert not may_call(policies, labels, "104.18.7.192", 80)
        assert may_call(policies, labels, "169.254.20.10", 53)
    assert may_call(policies, head, "172.20.0.1", 443), "Kubernetes' API"
    assert not may_call(policies, head, "169.254.169.254", 443)
    (ours,) = [p["spec"] for p in policies if p["metadata"]["name"] == "podium"]
    to_pods = [
        peer["podSelector"]["matchLabels"]
        for rule in ours["egress"]
        for peer in rule["to"]
        if "podSelector" in peer
    ]
    assert {"app.kubernetes.io/name": "podium"} in to_pods
    redis = documents("redis.yaml")[0]["spec"]["selector"]
    assert redis in to_pods


def test_the_head_connects_to_the_redis_service(spec: Data) -> None:
    options = spec["rayClusterConfig"]["gcsFaultToleranceOptions"]
    service = documents("redis.yaml")[0]
    assert options["redisAddress"] == f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    server = next(each for each in documents("redis.yaml") if each["kind"] == "StatefulSet")
    (env,) = server["spec"]["template"]["spec"]["containers"][0]["env"]
    assert env["valueFrom"] == options["redisPassword"]["valueFrom"]
