"""cluster/jaeger.yaml: what can be known without the binary."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

PATH = Path(__file__).resolve().parents[2] / "cluster" / "jaeger.yaml"


@pytest.fixture
def text() -> str:
    return PATH.read_text()


def endpoints(config: Any) -> list[str]:
    """Every `endpoint` in it."""
    if not isinstance(config, dict):
        return []
    return [v for k, v in config.items() if k == "endpoint"] + [
        e for v in config.values() for e in endpoints(v)
    ]


def parts_exist(config: dict[str, Any]) -> None:
    """Every part that the service names is configured, and the store it writes to is the one that is read."""
    pipeline = config["service"]["pipelines"]["traces"]
    for kind, names in {**pipeline, "extensions": config["service"]["extensions"]}.items():
        assert set(names) <= config[kind].keys(), kind
    stores = config["extensions"]["jaeger_storage"]["backends"]
    assert config["exporters"]["jaeger_storage_exporter"]["trace_storage"] in stores
    assert config["extensions"]["jaeger_query"]["storage"]["traces"] in stores


def test_it_listens_on_loopback_only_unless_told_otherwise(text: str) -> None:
    found = endpoints(yaml.safe_load(text))
    assert {endpoint.rsplit(":", 1)[1] for endpoint in found} >= {"4317", "4318", "16686"}
    assert all(endpoint.startswith("${env:JAEGER_LISTEN_HOST:-127.0.0.1}:") for endpoint in found)


def test_every_part_that_is_used_is_configured(text: str) -> None:
    parts_exist(yaml.safe_load(text))


def test_every_trace_is_kept_by_default(text: str) -> None:
    assert yaml.safe_load(text)["service"]["pipelines"]["traces"]["processors"] == ["batch"]


def test_the_commented_alternative_is_a_configuration_too(text: str) -> None:
    uncommented = re.sub(r"(?m)^  # (?=tail_sampling:|  )", "  ", text).replace(
        "processors: [batch]", "processors: [tail_sampling, batch]"
    )
    config = yaml.safe_load(uncommented)
    parts_exist(config)
    policies = config["processors"]["tail_sampling"]["policies"]
    assert {policy["type"] for policy in policies} >= {"status_code", "latency"}
    assert all(policy["type"] in policy for policy in policies)
