"""Prometheus reads Podium through Ray's metrics agent: each panel and each alert finds its metrics."""

import re
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest
import yaml
from anyio.from_thread import start_blocking_portal

from cluster.local.server import Server
from tests.conftest import ROOT
from tests.dashboards import ALERTS, alerts, expressions, names
from tests.live.default.local import Local, deploy
from tests.prometheus import Prometheus, running, wait_until_none
from tests.wires.openai import OpenAIWire
from tests.wires.server import serving

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

PRICE = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
QUICK = {"attempts": 2, "first_wait_s": 0.01}
PLAN = """\
{"worker": "a", "subtask": "Begin.", "access": []}
{"worker": "b", "subtask": "End.", "access": [0]}
"""
SETTINGS: dict[str, Any] = {
    "conductor": {"worker": "conductor"},
    "workers": [
        {"name": "conductor", "kind": "scripted", "in_pool": False, "replies": ["no plan", PLAN], "delay_s": 0.2},
        {"name": "a", "kind": "scripted", "replies": [{"error": "busy"}, "One."], "retry": QUICK, "price": PRICE},
        {"name": "b", "kind": "scripted", "replies": [{"error": "refused"}], "fallbacks": ["a"]},
        {"name": "cut", "kind": "scripted", "replies": [{"text": "x y z", "fail_after_tokens": 2}], "price": PRICE},
    ],
    "models": {"podium-mini": {"max_cost_usd": 1}},
    "router": {"num_cpus": 0.1},
}  # fmt: skip


def ask(url: str, model: str) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30).status_code


@pytest.fixture(scope="module")
def podium(local: Local, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a Podium whose workers produce each metric. Yield its URL."""
    path = tmp_path_factory.mktemp("metrics") / "settings.yaml"
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serving(OpenAIWire())) as upstream,
    ):
        unpriced = {"name": "unpriced", "kind": "openai", "model": "of-no-price-list", "base_url": f"{upstream.url}/v1"}  # fmt: skip
        own = {
            "workers": [*SETTINGS["workers"], unpriced],
            "store": {"path": str(path.with_name("podium.db"))},
        }
        path.write_text(yaml.safe_dump(SETTINGS | own))
        deploy("metrics", path)
        yield f"{local.url}/metrics"


@pytest.fixture(scope="module")
def prometheus(local: Local, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Run Prometheus with the shipped configuration, a shorter interval and the paths of this test."""
    config, folder = yaml.safe_load((ROOT / "cluster" / "prometheus.yaml").read_text()), tmp_path_factory.mktemp("prometheus")  # fmt: skip
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ALERTS)]
    (discovery,) = config["scrape_configs"][0]["file_sd_configs"]
    assert discovery["files"][0] == "../build/prometheus/*.json"
    server = Server(metrics_port=local.metrics_port)
    server.targets = folder / "targets.json"
    server._write_prometheus_target()
    discovery["files"] = [str(server.targets)]
    with running(config, folder) as prometheus:
        yield prometheus


def metric_names(prometheus: Prometheus) -> set[str]:
    return set(prometheus.get("label/__name__/values"))


def test_every_panel_and_every_alert_queries_existing_metrics(podium: str, prometheus: Prometheus) -> None:
    assert [ask(podium, model) for model in ("podium-mini", "cut", "unpriced")] == [200, 400, 200]
    queries = {**expressions("overview"), **expressions("workers")} | {
        name: expression for name, expression in alerts().items() if not name.startswith("Engine")
    }
    # no request is hedged here
    queries = {title: each for title, each in queries.items() if "hedges" not in each}
    metrics = {name for expression in queries.values() for name in names(expression)}
    assert len(metrics) > 25
    wait_until_none(lambda: metrics - metric_names(prometheus))
    assert [target["health"] for target in prometheus.get("targets")["activeTargets"]] == ["up"]

    empty = queries.keys() - alerts().keys()

    def never_shown() -> set[str]:
        """Return the panels that have not shown data yet. At this reporting interval, a gauge shows for 2 of every 5
        s.
        """
        empty.difference_update([title for title in empty if prometheus.query(queries[title])])
        return empty

    ask(podium, "podium-mini")  # a counter has a rate from its second value on
    wait_until_none(never_shown)


def test_a_run_is_counted_once_without_ids_or_texts_in_labels(podium: str, prometheus: Prometheus) -> None:
    def count() -> float:
        samples = prometheus.query(
            'sum(ray_gen_ai_workflow_duration_seconds_count{gen_ai_workflow_name="a", podium_status="finished"})'
        )
        return float(samples[0]["value"][1]) if samples else 0.0

    before = count()
    answered = [ask(podium, "a") for _ in range(3)].count(200)
    assert answered == 3
    wait_until_none(lambda: before + 3 - count())
    series = prometheus.get("series", **{"match[]": '{__name__=~"ray_(podium|gen_ai).*"}'})
    labels = {label for each in series for label in each} - {"__name__", "instance", "job", "le"}
    ours = {label for label in labels if re.match("podium|gen_ai|error", label)}
    assert labels - ours == {"Component", "NodeAddress", "WorkerId"}, "Ray's own"
    assert not any(re.search(r"wf_|sky", value) for each in series for value in each.values())


def test_vllm_metrics_are_exported_through_rays_agent(local: Local) -> None:
    long = "Which of these words is the last? " + "word " * 400  # longer than a block of the prefix cache
    body = {"model": "writer", "messages": [{"role": "user", "content": long}], "max_tokens": 8}
    for _ in range(2):
        assert httpx.post(f"{local.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
    queries = [*expressions("engines").values(), *(e for name, e in alerts().items() if "Engine" in name)]
    metrics = {name for expression in queries for name in names(expression)}
    series = set[str]()

    def missing() -> set[str]:
        text = httpx.get(f"http://127.0.0.1:{local.metrics_port}/metrics", timeout=10).text
        lines = (line for line in text.splitlines() if 'model_name="writer"' in line or "ray_serve" in line)
        series.update(line.partition("{")[0] for line in lines)  # the gauges of an idle engine show for 20 s
        return metrics - series

    wait_until_none(missing)
