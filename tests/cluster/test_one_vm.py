"""docs/operations/one-vm.md: Podium accepts what a reader copies from it."""

import configparser
import contextlib
import io
import re

import pytest
import yaml

from cluster.local.serve import main
from serving.settings.settings import parse
from serving.telemetry.metrics import INSTRUMENTS
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "operations" / "one-vm.md").read_text()


def block(language: str, containing: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    (text,) = [each for each in blocks if containing in each]
    return text


def test_the_unit_starts_podium_with_valid_options() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    unit.read_string(block("ini", "[Service]"))
    command = unit["Service"]["ExecStart"].split()
    assert command[:2] == ["/opt/podium/bin/podium", "serve"]
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit):
        main(["--help"])
    assert all(word in printed.getvalue() for word in command if word.startswith("--"))
    assert unit["Service"]["KillMode"] == "mixed", "Podium ends its own processes"


def test_the_settings_are_valid_and_accept_caddys_host_name() -> None:
    settings = parse(yaml.safe_load(block("yaml", "conductor:")))
    (name,) = settings.http.hosts or ()
    assert block("text", "reverse_proxy").startswith(f"{name} {{")


def test_routers_metrics_and_the_proxy_have_the_same_ports() -> None:
    ports = set(re.findall(r"podium@(\d+)", PAGE))
    assert ports == {"8001", "8002"}
    assert set(re.findall(r"127\.0\.0\.1:(\d{4})\b", block("text", "reverse_proxy"))) == ports
    scraped = yaml.safe_load(block("yaml", "scrape_configs"))["scrape_configs"][0]["static_configs"][0]
    assert {target.rpartition(":")[2] for target in scraped["targets"]} == {f"1{port}" for port in ports}


def test_documented_variables_and_metrics_exist() -> None:
    guard = (ROOT / "cluster" / "haproxy_guarded.sh").read_text()
    assert "PODIUM_HAPROXY_CONNECTIONS_PER_SOURCE=0" in PAGE
    assert "PODIUM_HAPROXY_CONNECTIONS_PER_SOURCE" in guard
    (metric,) = set(re.findall(r"\bray_(podium_\w+)", PAGE))
    assert metric in {each.prometheus_name for each in INSTRUMENTS}
