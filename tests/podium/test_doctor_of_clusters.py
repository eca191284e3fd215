"""`podium doctor --cluster` and `podium check`: the shipped files agree, and each disagreement has a file, a field
and a remedy.
"""

import copy
import io
import json
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from podium.doctor.cli import check, examine_cluster, main
from podium.doctor.cluster import cost, machines, memory
from podium.doctor.cluster.files import ClusterFiles, read_files
from podium.doctor.cluster.reading import CheckError
from podium.doctor.finding import Finding
from serving.settings.workers import VllmSettings

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT / "cluster" / "gpu.yaml"
SERVE = ROOT / "cluster" / "gpu.serve.yaml"
AWS = ROOT / "ray_cluster.yaml"
KUBERAY = ROOT / "cluster" / "kubernetes" / "gpu" / "rayservice.yaml"
CLUSTERS = (AWS, ROOT / "cluster/ray_cluster.gcp.yaml", ROOT / "cluster/ray_cluster.onprem.yaml", KUBERAY)
Data = dict[str, Any]


def run_check(*arguments: str) -> tuple[int, str]:
    """Return the exit code and the output of the command on a wide terminal."""
    written = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(written):
        patch.setenv("COLUMNS", "200")
        return check(arguments), written.getvalue()


def findings(files: ClusterFiles) -> list[Finding]:
    return [finding for _, finding in examine_cluster(files)]


class Files:
    """Shipped files as data, which a test changes and writes to a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings, self.serve, self.cluster = (
            copy.deepcopy(yaml.safe_load(path.read_text())) for path in (SETTINGS, SERVE, AWS)
        )

    def worker(self, name: str) -> Data:
        return next(worker for worker in self.settings["workers"] if worker["name"] == name)

    def deployment(self, name: str) -> Data:
        return next(each for each in self.serve["applications"][0]["deployments"] if each["name"] == name)

    def node(self, name: str) -> Data:
        return self.cluster["available_node_types"][name]

    def paths(self) -> tuple[Path, Path, Path]:
        places = (self.folder / "cluster/gpu.yaml", self.folder / "serve.yaml", self.folder / "cluster.yaml")
        places[0].parent.mkdir(exist_ok=True)
        for path, data in zip(places, (self.settings, self.serve, self.cluster), strict=True):
            path.write_text(yaml.safe_dump(data))
        return places

    def case(self) -> ClusterFiles:
        return read_files(*self.paths())


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


# Shipped files


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda path: path.name)
def test_the_shipped_files_agree(cluster: Path) -> None:
    code, text = run_check("--cluster", str(cluster))
    assert code == 0, text
    assert "agree" in text


def test_the_shipped_files_have_no_findings() -> None:
    for cluster in CLUSTERS:
        assert findings(read_files(SETTINGS, SERVE, cluster)) == []


def test_the_rayservice_contains_its_own_serve_config() -> None:
    assert findings(read_files(SETTINGS, KUBERAY, KUBERAY)) == []


def test_the_files_still_agree_after_a_round_trip(files: Files) -> None:
    assert findings(files.case()) == []


def test_every_node_type_of_a_cloud_has_a_price() -> None:
    for cluster in (AWS, ROOT / "cluster/ray_cluster.gcp.yaml", KUBERAY):
        assert all(line.usd_per_h for line in cost.hourly(read_files(SETTINGS, SERVE, cluster)))


def test_the_conductor_option_changes_the_checked_settings(files: Files) -> None:
    application = files.serve["applications"][0]
    application["args"]["conductor"] = "gpt-5"
    application["deployments"].remove(files.deployment("vllm-conductor"))
    assert not [finding for finding in findings(files.case()) if finding.level == "wrong"]
    application["args"]["conductor"] = "nobody"
    with pytest.raises(CheckError, match=r"These workers can be the conductor: .*qwen3-32b"):
        files.case()


# Broken files
# broken


def breaks(name: str, field: str, says: str, *, fault: bool = True) -> Callable[..., Any]:
    def put(change: Callable[[Files], object]) -> Any:
        return pytest.param(change, name, field, says, fault, id=change.__name__)

    return put


@breaks("serve.yaml", "deployments.vllm-qwen4", "is not a deployment of the settings")
def an_unknown_deployment(files: Files) -> None:
    files.deployment("vllm-qwen3-32b")["name"] = "vllm-qwen4"


@breaks("serve.yaml", "deployments", "lack vllm-gemma-3-27b-it")
def a_missing_deployment(files: Files) -> None:
    files.serve["applications"][0]["deployments"].pop()


@breaks("serve.yaml", "deployments.vllm-conductor", "is not a deployment of the settings")
def an_unused_conductors_engine(files: Files) -> None:
    files.serve["applications"][0]["args"]["conductor"] = "gpt-5"


@breaks("serve.yaml", "args.settings", "is cluster/local.yaml")
def a_serve_config_for_other_settings(files: Files) -> None:
    files.serve["applications"][0]["args"]["settings"] = "cluster/local.yaml"


@breaks("serve.yaml", "vllm-qwen3-32b.placement_group_bundles", "have 1 GPUs")
def fewer_gpus_than_the_model_is_split_over(files: Files) -> None:
    files.deployment("vllm-qwen3-32b")["placement_group_bundles"] = [{"CPU": 4, "GPU": 1, "gpu_48gb": 0.01}]


@breaks("serve.yaml", "vllm-qwen3-32b.placement_group_bundles", "splits the model over 4")
def a_model_split_further_than_its_bundles(files: Files) -> None:
    files.worker("qwen3-32b")["engine"]["tensor_parallel_size"] = 4


@breaks("cluster.yaml", "available_node_types", "have no type that fits a replica of vllm-conductor")
def no_node_for_the_conductor(files: Files) -> None:
    del files.node("gpu_24gb")["resources"]["gpu_24gb"]


@breaks("cluster.yaml", "available_node_types", "have no type that fits a replica of vllm-qwen3-32b")
def nodes_with_one_gpu_for_a_model_on_two(files: Files) -> None:
    files.node("gpu_48gb")["resources"]["GPU"] = 1


@breaks("cluster.yaml", "gpu_48gb.max_workers", "is 2, but the maximum number of replicas needs 3")
def too_few_nodes_for_all_replicas(files: Files) -> None:
    files.node("gpu_48gb")["max_workers"] = 2


@breaks("cluster.yaml", "max_workers", "is 7, but the maximum number of replicas needs 8")
def too_few_nodes_together(files: Files) -> None:
    files.cluster["max_workers"] = 7


@breaks("cluster.yaml", "head.resources", "let the head node run replicas")
def a_head_that_runs_replicas(files: Files) -> None:
    files.node("head")["resources"]["CPU"] = 8


@breaks("gpu.yaml", "worker 'qwen3-32b': engine", "61 GiB for weights")
def weights_that_do_not_fit(files: Files) -> None:
    files.node("gpu_48gb")["resources"] = {"CPU": 48, "GPU": 4, "gpu_48gb": 1, "accelerator_type:L4": 1}


@breaks("gpu.yaml", "worker 'conductor': engine.max_model_len", "holds only 73")
def a_context_larger_than_the_cache(files: Files) -> None:
    files.worker("conductor")["engine"]["max_model_len"] = 131072


@breaks("gpu.yaml", "worker 'qwen3-32b': model", "size is unknown", fault=False)
def a_model_of_unknown_size(files: Files) -> None:
    files.worker("qwen3-32b")["model"] = "somebody/new-32b"


@breaks("cluster.yaml", "gpu_48gb.resources", "unknown memory (B200)", fault=False)
def a_gpu_of_unknown_size(files: Files) -> None:
    files.node("gpu_48gb")["resources"] = {"CPU": 48, "GPU": 4, "gpu_48gb": 1, "accelerator_type:B200": 1}


@breaks("cluster.yaml", "environment", "has no GEMINI_API_KEY")
def a_key_that_no_node_gets(files: Files) -> None:
    variables = "OPENAI_API_KEY ANTHROPIC_API_KEY PODIUM_STORE_URL"
    files.cluster["initialization_commands"] = [f"for name in {variables}; do true; done"]


@breaks("cluster.yaml", "environment", "has no TEAM_STORE_URL, which is the address of the store")
def a_store_address_missing_on_the_nodes(files: Files) -> None:
    files.settings["store"] = {"url_env": "TEAM_STORE_URL"}


@breaks("gpu.yaml", "worker 'gpt-5': price", "is not set")
def an_api_worker_without_a_price(files: Files) -> None:
    del files.worker("gpt-5")["price"]
    files.worker("gpt-5")["model"] = "gpt-that-no-table-has"


@breaks(
    "serve.yaml", "router.graceful_shutdown_timeout_s", "is 30 s, but a request in progress may take 600 s"
)
def a_router_that_is_stopped_too_early(files: Files) -> None:
    del files.deployment("router")["graceful_shutdown_timeout_s"]


@breaks("serve.yaml", "router.graceful_shutdown_timeout_s", "may take 1200 s")
def a_model_with_a_longer_deadline(files: Files) -> None:
    files.settings["models"]["podium-ultra"]["deadline_s"] = 1200


@breaks("serve.yaml", "vllm-qwen3-32b.graceful_shutdown_timeout_s", "may take 600 s")
def an_engine_that_is_stopped_too_early(files: Files) -> None:
    files.deployment("vllm-qwen3-32b")["graceful_shutdown_timeout_s"] = 60


@breaks("cluster.yaml", "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S", "is 120 s, but a run may take 600 s")
def a_proxy_that_stops_runs_too_early(files: Files) -> None:
    options = files.cluster["docker"]["run_options"]
    files.cluster["docker"]["run_options"] = [each for each in options if "HARD_STOP" not in each]


@breaks("cluster.yaml", "gpu_24gb", "is a spot node type, and vllm-conductor runs on it")
def a_conductor_on_spot(files: Files) -> None:
    files.node("gpu_24gb")["node_config"]["InstanceMarketOptions"] = {"MarketType": "spot"}


@breaks(
    "gpu.yaml", "worker 'qwen3-32b': fallbacks", "are empty, and its node type gpu_48gb is spot", fault=False
)
def spot_without_a_fallback(files: Files) -> None:
    del files.worker("qwen3-32b")["fallbacks"]


@breaks("cluster.yaml", "router", "uses z9.large, whose price is unknown", fault=False)
def a_machine_without_a_price(files: Files) -> None:
    files.node("router")["node_config"]["InstanceType"] = "z9.large"


def scaled(files: Files, name: str = "vllm-conductor") -> Data:
    return files.deployment(name)["autoscaling_config"]


@breaks("serve.yaml", "vllm-conductor.autoscaling_config.policy", "has no 'by_lod'")
def a_policy_misspelt(files: Files) -> None:
    scaled(files)["policy"] = {"policy_function": "serving.deployments.autoscaling:by_lod"}


@breaks("serve.yaml", "vllm-conductor.autoscaling_config.policy", "Ray's own policy applies")
def a_missing_policy(files: Files) -> None:
    del scaled(files)["policy"]


@breaks("serve.yaml", "router.user_config", "changes the worker 'qwen4'")
def a_user_config_without_a_receiver(files: Files) -> None:
    files.deployment("router")["user_config"]["workers"][0]["name"] = "qwen4"


@breaks("serve.yaml", "import_path", "has no 'build_ap'")
def an_import_path_misspelt(files: Files) -> None:
    files.serve["applications"][0]["import_path"] = "serving.app:build_ap"


@breaks("serve.yaml", "router.num_replicas", "is 0, so no replica can answer")
def no_router(files: Files) -> None:
    files.deployment("router")["num_replicas"] = 0


@breaks("serve.yaml", "http_options.port", "is 9000")
def a_port_behind_the_firewall(files: Files) -> None:
    files.serve["http_options"]["port"] = 9000


@breaks(
    "serve.yaml", "vllm-conductor.autoscaling_config.target_ongoing_requests", "max_ongoing_requests (256)"
)
def a_target_without_effect(files: Files) -> None:
    scaled(files)["target_ongoing_requests"] = 2400


@breaks("cluster.yaml", "gpu_24gb: image", "Python py312, Ray 2.60.0")
def a_head_of_another_ray(files: Files) -> None:
    files.cluster["docker"]["image"] = "rayproject/ray:2.40.0-py310"


@breaks("cluster.yaml", "gpu_48gb.resources", "declares 4 GPUs, but a g6e.2xlarge has 1")
def more_gpus_than_the_machine_has(files: Files) -> None:
    files.node("gpu_48gb")["node_config"]["InstanceType"] = "g6e.2xlarge"


@breaks("serve.yaml", "vllm-gemma-3-27b-it.autoscaling_config.min_replicas", "the settings have 1 in")
def scaled_to_zero_in_one_file_only(files: Files) -> None:
    files.worker("gemma-3-27b-it")["scale"]["min_replicas"] = 1


@breaks("serve.yaml", "vllm-conductor.autoscaling_config.look_back_period_s", "Ray's default of 30 applies")
def a_missing_look_back_period(files: Files) -> None:
    del scaled(files)["look_back_period_s"]


@breaks("serve.yaml", "vllm-conductor.autoscaling_config.metrics_interval_s", "Ray's default of 10 applies")
def a_missing_metrics_interval(files: Files) -> None:
    del scaled(files)["metrics_interval_s"]


BROKEN = [each for each in list(globals().values()) if hasattr(each, "marks")]


@pytest.mark.parametrize(("change", "name", "field", "says", "fault"), BROKEN)
def test_each_fault_is_found_with_its_remedy(
    files: Files, change: Callable[[Files], object], name: str, field: str, says: str, fault: bool
) -> None:
    change(files)
    results = findings(files.case())
    meant = [
        each for each in results
        if each.file.endswith(name) and each.field.endswith(field) and says in each.said and (each.level == "wrong") == fault
    ]  # fmt: skip
    assert meant, results
    assert all(len(each.remedy) > 10 for each in meant)


def test_a_fault_is_printed_and_exits_1(files: Files) -> None:
    files.node("gpu_48gb")["max_workers"] = 2
    settings, serve, cluster = map(str, files.paths())
    code, text = run_check("--settings", settings, "--serve", serve, "--cluster", cluster)
    assert code == 1
    assert "gpu_48gb.max_workers" in text
    assert text.count("WRONG") == 1


def test_a_warning_exits_0(files: Files) -> None:
    del files.worker("qwen3-32b")["fallbacks"]
    settings, serve, cluster = map(str, files.paths())
    code, text = run_check("--settings", settings, "--serve", serve, "--cluster", cluster)
    assert (code, "warning" in text) == (0, True)


# Memory and money


def test_a_models_size_is_read_from_its_folder(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    size = memory.size_of(str(tmp_path), {})
    assert size is not None
    assert (size.weight_bytes, size.layers, size.kv_heads, size.head_dim) == (1000, 4, 2, 64)


def test_fp8_halves_weights_and_cache(files: Files) -> None:
    def fitted() -> memory.Fit:
        case = files.case()
        fit = memory.fit(case, next(d for d in case.deployments if d.name == "vllm-qwen3-32b"))
        assert fit
        return fit

    before = fitted()
    files.worker("qwen3-32b")["engine"] |= {"quantization": "fp8", "kv_cache_dtype": "fp8"}
    after = fitted()
    assert after.weights_gib == pytest.approx(before.weights_gib / 2)
    assert after.kv_tokens == pytest.approx(
        2 * (before.kv_gib + after.weights_gib) * 2**30 / 262144, rel=1e-4
    )


def test_every_served_model_has_a_known_size() -> None:
    case = read_files(SETTINGS, SERVE, AWS)
    served = {w.model for w in case.settings.workers if isinstance(w, VllmSettings) and not w.deployment}
    assert served <= case.models.keys()


def test_nodes_are_packed_for_minimum_and_maximum_replicas() -> None:
    lines = {line.node.name: line for line in cost.hourly(read_files(SETTINGS, SERVE, AWS))}
    counts = {name: (line.at_least, line.at_most) for name, line in lines.items()}
    assert counts == {"head": (1, 1), "router": (1, 1), "gpu_24gb": (1, 4), "gpu_48gb": (1, 3)}
    smallest, largest = cost.sums(list(lines.values()))
    assert smallest == sum(line.usd_per_h for line in lines.values() if line.usd_per_h)
    assert smallest is not None
    assert largest is not None
    assert largest > smallest


def test_the_cost_of_a_thousand_requests_is_that_of_their_calls() -> None:
    case = read_files(SETTINGS, SERVE, AWS)
    gpt, claude = case.settings.worker("gpt-5").price, case.settings.worker("claude-sonnet-4").price
    assert gpt
    assert claude
    ultra = (800 * gpt.input_usd_per_mtok + 2500 * gpt.output_usd_per_mtok) + (
        3500 * claude.input_usd_per_mtok + 900 * claude.output_usd_per_mtok
    )
    assert cost.provider_usd(case, "chat") == 0
    assert cost.provider_usd(case, "ultra") == ultra / 1_000_000
    mix = cost.shares("chat=0.7,ultra=0.3", case.prices.requests)
    assert cost.provider_usd_per_thousand(case, mix) == ultra / 1000 * Decimal("0.3")


def test_an_unknown_price_makes_the_sum_unknown(files: Files) -> None:
    del files.worker("gpt-5")["price"]
    files.worker("gpt-5")["model"] = "gpt-that-no-table-has"
    files.node("router")["node_config"]["InstanceType"] = "z9.large"
    case = files.case()
    assert cost.provider_usd(case, "ultra") is None
    assert cost.sums(cost.hourly(case)) == (None, None)


def test_the_machines_cost_per_request_falls_with_the_load() -> None:
    assert cost.machines_per_thousand(Decimal(36), Decimal(1)) == 10
    assert cost.machines_per_thousand(Decimal(36), Decimal(10)) == 1
    _, text = run_check("--rps", "2")
    assert re.search(r"\$0\.95 to \$2\.70 for the machines, at 2 requests per second", text)


def test_the_machines_share_is_explained_if_they_cannot_serve_the_rate() -> None:
    _, text = run_check("--rps", "1000")
    assert "whether or not the machines can serve that rate" in text
    assert "128 answers concurrently" in text
    assert "podium capacity" in text


def test_a_price_table_of_the_operator_can_be_used(tmp_path: Path) -> None:
    own = tmp_path / "prices.yaml"
    own.write_text("requests: {ours: [{worker: gpt-5, input_tokens: 0, output_tokens: 1000}]}")
    code, text = run_check("--prices", str(own), "--mix", "ours=1")
    assert code == 0
    assert "$10.00 billed by providers" in text


def test_a_request_mix_for_other_settings_is_a_warning_with_unknown_cost() -> None:
    code, text = run_check("--settings", str(ROOT / "cluster/local.yaml"))
    assert "requests.ultra" in text
    assert "? billed by providers" in text
    assert code == 1, "and its deployments are not those of the Serve config"


# The command


def test_the_doctor_prints_a_clusters_faults_as_json_with_file_and_field(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    files.node("gpu_48gb")["max_workers"] = 2
    settings, serve, cluster = map(str, files.paths())
    code = main(["--cluster", cluster, "--settings", settings, "--serve", serve, "--json"])
    (finding,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert code == 1
    assert (finding["check"], finding["level"], finding["file"]) == ("nodes", "wrong", cluster)
    assert finding["field"] == "gpu_48gb.max_workers"


def test_a_cluster_check_can_be_skipped_by_name(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.node("gpu_48gb")["max_workers"] = 2
    settings, serve, cluster = map(str, files.paths())
    options = ["--settings", settings, "--serve", serve, "--cluster", cluster, "--quiet"]
    assert main([*options, "--skip", "nodes"]) == 0
    assert capsys.readouterr().out == ""


# Bad input


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--mix", "chat=0.7"), "sum to 1"),
        (("--mix", "poetry=1"), "unknown kind 'poetry'. Choose from passthrough, chat, ultra"),
        (("--mix", "chat=most"), "Use KIND=SHARE"),
        (("--mix", "chat=0.5,chat=1"), "lists 'chat' twice"),
        (("--mix", "chat=nan"), "sum to 1"),
        (("--serve", "/dev/null"), "it is empty"),
        (("--cluster", "nowhere.yaml"), "nowhere.yaml cannot be read"),
        (("--cluster", str(SETTINGS)), "neither a cluster file"),
        (("--serve", str(SETTINGS)), "is not a Serve config: it has no `applications`"),
        (("--settings", str(SERVE)), "is not a known setting"),
    ],
)
def test_invalid_input_is_reported_in_one_sentence(arguments: tuple[str, ...], says: str) -> None:
    code, text = run_check(*arguments)
    assert code == 1
    assert says in text
    assert "Traceback" not in text


def test_an_invalid_price_table_is_an_error_with_its_field(tmp_path: Path) -> None:
    own = tmp_path / "prices.yaml"
    own.write_text("instances: {g5.2xlarge: {on_demand_usd: 1}}")
    code, text = run_check("--prices", str(own))
    assert code == 1
    assert "instances.g5.2xlarge.on_demand_usd" in text


@pytest.mark.parametrize("rate", ["0", "-1", "many", "nan", "inf"])
def test_an_invalid_rate_is_rejected(rate: str) -> None:
    with pytest.raises(SystemExit):
        check(["--rps", rate])


def test_own_machines_must_be_described(tmp_path: Path) -> None:
    own = tmp_path / "onprem.yaml"
    own.write_text("provider: {type: local, head_ip: 10.0.0.1, worker_ips: [10.0.0.2]}")
    with pytest.raises(CheckError, match=r"provider\.node_types"):
        machines.read(own)
