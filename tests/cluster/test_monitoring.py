"""Configuration of Prometheus, alerts and dashboards, checked with nothing running."""

import re

import pytest
import yaml

from serving.telemetry.metrics import INSTRUMENTS
from tests.conftest import ROOT
from tests.dashboards import ALERTS, BOARDS, alerts, board, expressions, names
from tests.prometheus import promtool

HERE = ROOT / "tests" / "cluster"
SUFFIX = r"_(bucket|count|sum|total)$"


def test_prometheus_accepts_its_configuration_and_the_alerts() -> None:
    assert "SUCCESS" in promtool("check", "config", ROOT / "cluster" / "prometheus.yaml")
    assert f"SUCCESS: {len(alerts())} rules" in promtool("check", "rules", "--lint-fatal", ALERTS)


def test_each_alert_fires_only_under_its_condition() -> None:
    promtool("test", "rules", HERE / "alerts.test.yaml")


def test_each_alert_is_tested_and_documented() -> None:
    groups = yaml.safe_load((HERE / "alerts.test.yaml").read_text())["tests"]
    fired = {
        case["alertname"] for group in groups for case in group["alert_rule_test"] if case.get("exp_alerts")
    }
    silent = {
        case["alertname"] for group in groups for case in group["alert_rule_test"] if not case["exp_alerts"]
    }
    assert fired == silent == alerts().keys()
    page = (ROOT / "docs" / "operations" / "alerts.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == alerts().keys()


def test_every_queried_metric_of_podium_is_a_known_instrument() -> None:
    ours = {f"ray_{each.prometheus_name}" for each in INSTRUMENTS}
    queries = [*alerts().values(), *(e for path in BOARDS for e in expressions(path.stem).values())]
    read = {
        re.sub(SUFFIX, "", name)
        for expression in queries
        for name in names(expression)
        if "podium" in name or "gen_ai" in name
    }
    assert read == ours, "asked and never measured, or measured and never shown"


@pytest.mark.parametrize("name", [path.stem for path in BOARDS])
def test_a_dashboard_is_complete(name: str) -> None:
    shown = board(name)
    assert shown["uid"] == f"podium-{name}"
    assert len({panel["id"] for panel in shown["panels"]}) == len(shown["panels"])
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in shown["panels"]]
    assert len(set(places)) == len(places)
    sources = {target["datasource"]["uid"] for panel in shown["panels"] for target in panel["targets"]}
    chosen = shown["templating"]["list"][0]["name"]
    assert sources == {f"${{{chosen}}}"}, "whatever the data source is called there"
