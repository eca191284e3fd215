"""Prometheus queries of the dashboards and alerts."""

import json
import re
from typing import Any

import yaml

from tests.conftest import ROOT

ALERTS = ROOT / "cluster" / "alerts.yaml"
BOARDS = sorted((ROOT / "cluster" / "grafana").glob("*.json"))


def alerts() -> dict[str, str]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def board(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "cluster" / "grafana" / f"{name}.json").read_text())


def expressions(name: str) -> dict[str, str]:
    """Return each query of a dashboard by its panel's title, as Grafana sends it."""
    return {
        f"{panel['title']} {target['refId']}": target["expr"].replace("$__rate_interval", "1m")
        for panel in board(name)["panels"]
        for target in panel["targets"]
    }


def names(expression: str) -> set[str]:
    return set(re.findall(r"\bray_\w+", expression))
