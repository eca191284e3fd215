"""cluster/jaeger.yaml, checked without the binary."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.settings.settings import LimitSettings
from serving.telemetry import spans

PATH = Path(__file__).resolve().parents[2] / "cluster" / "jaeger.yaml"
SAMPLING = PATH.with_name("jaeger.sampling.yaml")

# Fields of the collector's processor that we use:
# processor/tailsamplingprocessor/config.schema.yaml of
# github.com/open-telemetry/opentelemetry-collector-contrib, read on 2026-11-21.
PROCESSOR = {"decision_wait", "decision_wait_after_root_received", "num_traces", "decision_cache", "policies"}
POLICIES = {
    "status_code": {"status_codes"},
    "latency": {"threshold_ms", "upper_threshold_ms"},
    "string_attribute": {"key", "values", "enabled_regex_matching", "cache_max_size", "invert_match"},
    "probabilistic": {"sampling_percentage", "hash_salt"},
}


@pytest.fixture
def text() -> str:
    return PATH.read_text()


def endpoints(config: Any) -> list[str]:
    if not isinstance(config, dict):
        return []
    return [v for k, v in config.items() if k == "endpoint"] + [
        e for v in config.values() for e in endpoints(v)
    ]


def parts_exist(config: dict[str, Any]) -> None:
    """Assert that each part that the service names is configured, and that it reads the store it writes to."""
    pipeline = config["service"]["pipelines"]["traces"]
    for kind, names in {**pipeline, "extensions": config["service"]["extensions"]}.items():
        assert set(names) <= config[kind].keys(), kind
    stores = config["extensions"]["jaeger_storage"]["backends"]
    assert config["exporters"]["jaeger_storage_exporter"]["trace_storage"] in stores
    assert config["extensions"]["jaeger_query"]["storage"]["traces"] in stores


def test_jaeger_listens_on_loopback_unless_configured_otherwise(text: str) -> None:
    addresses = endpoints(yaml.safe_load(text))
    assert {endpoint.rsplit(":", 1)[1] for endpoint in addresses} >= {"4317", "4318", "16686"}
    assert all(endpoint.startswith("${env:JAEGER_LISTEN_HOST:-127.0.0.1}:") for endpoint in addresses)


def test_every_used_component_is_configured(text: str) -> None:
    parts_exist(yaml.safe_load(text))


def test_every_trace_is_stored_by_default(text: str) -> None:
    assert yaml.safe_load(text)["service"]["pipelines"]["traces"]["processors"] == ["batch"]


def merged(base: Any, over: Any) -> Any:
    """Merge as the collector merges its `--config` files: key by key, replacing all but maps."""
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    return {**base, **{key: merged(base.get(key), value) for key, value in over.items()}}


def test_the_sampling_file_adds_policies_for_errors_slow_runs_and_fallbacks(text: str) -> None:
    config = merged(yaml.safe_load(text), yaml.safe_load(SAMPLING.read_text()))
    parts_exist(config)
    assert config["service"]["pipelines"]["traces"]["processors"] == ["tail_sampling", "batch"]
    sampling = config["processors"]["tail_sampling"]
    assert sampling.keys() <= PROCESSOR
    for policy in sampling["policies"]:
        assert policy.keys() == {"name", "type", policy["type"]}
        assert policy[policy["type"]].keys() <= POLICIES[policy["type"]]
    assert [policy["type"] for policy in sampling["policies"]] == list(POLICIES)
    assert sampling["policies"][2]["string_attribute"]["key"] == spans.FALLBACK


def test_sampling_waits_until_the_longest_run_has_ended() -> None:
    sampling = yaml.safe_load(SAMPLING.read_text())["processors"]["tail_sampling"]
    assert float(sampling["decision_wait"].removesuffix("s")) > LimitSettings().default_deadline_s
