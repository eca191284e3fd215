"""A real Prometheus reads a real Podium through Ray's metrics agent: every panel and every alert has something to look at."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import yaml
from anyio.from_thread import start_blocking_portal

from cluster.local.server import Server
from tests.conftest import ROOT, Local
from tests.dashboards import ALERTS, alerts, expressions, names
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
ONE_STEP = '{"worker": "free", "subtask": "", "access": []}'
SETTINGS = {
    "conductor": {"worker": "conductor", "speculation": {"min_plans": 1, "min_agreement": 0.1}},
    "workers": [
        {"name": "conductor", "kind": "scripted", "in_pool": False, "replies": ["no plan", PLAN, ONE_STEP, ONE_STEP], "delay_s": 0.2},
        {"name": "a", "kind": "scripted", "replies": [{"error": "busy"}, "One."], "retry": QUICK, "price": PRICE},
        {"name": "b", "kind": "scripted", "replies": [{"error": "refused"}], "fallbacks": ["a"]},
        {"name": "free", "kind": "scripted", "replies": ["Three."]},
        {"name": "cut", "kind": "scripted", "replies": [{"text": "x y z", "fail_after_tokens": 2}], "price": PRICE},
        {"name": "unpriced", "kind": "openai", "model": "of-no-price-list"},
    ],
    "models": {"podium-mini": {"max_cost_usd": 1}},
}  # fmt: skip


def ask(url: str, model: str) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30).status_code


@pytest.fixture(scope="module")
def podium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Podium whose workers do whatever there is a metric for."""
    settings = tmp_path_factory.mktemp("podium") / "settings.yaml"
    settings.write_text(yaml.safe_dump(SETTINGS))
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serving(OpenAIWire())) as upstream,
        Server(
            settings=settings,
            port=0,
            env={
                "RAY_metrics_report_interval_ms": "1000",
                "OPENAI_API_KEY": "sk-nothing",
                "OPENAI_BASE_URL": f"{upstream.url}/v1",
            },
        ) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def prometheus(podium: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Ours as it is shipped, but for its pace and for what its paths start from."""
    config = yaml.safe_load((ROOT / "cluster" / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ALERTS)]
    (discovery,) = config["scrape_configs"][0]["file_sd_configs"]
    assert discovery["files"][0] == "../build/prometheus/*.json"
    discovery["files"] = [str(podium.targets)]
    with running(config, tmp_path_factory.mktemp("prometheus")) as server:
        yield server


def known(prometheus: Prometheus) -> set[str]:
    return set(prometheus.get("label/__name__/values"))


def test_every_panel_and_every_alert_asks_for_what_is_there(podium: Server, prometheus: Prometheus) -> None:
    assert [ask(podium.url, model) for model in ("podium-mini", "cut", "unpriced")] == [200, 400, 200]
    for _ in range(4):  # after which some workers were asked early, for something and for nothing
        ask(podium.url, "podium-mini")
    asked = {**expressions("overview"), **expressions("workers")} | {
        name: expression for name, expression in alerts().items() if not name.startswith("Engine")
    }
    # nothing here is asked twice
    asked = {title: each for title, each in asked.items() if "hedges" not in each}
    wanted = {name for expression in asked.values() for name in names(expression)}
    assert len(wanted) > 25
    wait_until_none(lambda: wanted - known(prometheus))
    assert [target["health"] for target in prometheus.get("targets")["activeTargets"]] == ["up"]

    empty = asked.keys() - alerts().keys()

    def never_shown() -> set[str]:
        """Panels without a line so far. A level is shown for 2 s of the 5 after which it is taken again, since
        Ray reports as often as it does here.
        """
        empty.difference_update([title for title in empty if prometheus.query(asked[title])])
        return empty

    ask(podium.url, "podium-mini")  # what counts up is a rate from its second value on
    wait_until_none(never_shown)


def test_a_run_is_counted_once_and_by_names_alone(podium: Server, prometheus: Prometheus) -> None:
    def count() -> float:
        found = prometheus.query(
            'sum(ray_gen_ai_workflow_duration_seconds_count{gen_ai_workflow_name="a", podium_status="finished"})'
        )
        return float(found[0]["value"][1]) if found else 0.0

    before = count()
    answered = [ask(podium.url, "a") for _ in range(3)].count(200)
    assert answered == 3
    wait_until_none(lambda: before + 3 - count())
    series = prometheus.get("series", **{"match[]": '{__name__=~"ray_(podium|gen_ai).*"}'})
    labels = {label for each in series for label in each} - {"__name__", "instance", "job", "le"}
    ours = {label for label in labels if re.match("podium|gen_ai|error", label)}
    assert labels - ours == {"Component", "NodeAddress", "WorkerId"}, "Ray's own"
    assert not any(re.search(r"wf_|sky", value) for each in series for value in each.values())


def test_every_run_is_a_line_of_json_in_the_servers_log(podium: Server) -> None:
    assert ask(podium.url, "a") == 200

    def lines() -> list[dict[str, Any]]:
        found = re.findall(r"(\{\"time\".*\})", podium.log.read_text())
        return [json.loads(line) for line in found]

    wait_until_none(lambda: not any(line.get("model") == "a" for line in lines()))
    line = next(line for line in lines() if line.get("model") == "a")
    assert line["message"] == "workflow finished"
    assert re.fullmatch(r"[0-9a-f]{32}", line["trace_id"])


def test_the_file_that_prometheus_watches_is_gone_with_the_server(tmp_path: Path) -> None:
    server = Server(port=0)
    server.targets = tmp_path / "targets.json"
    server._tell_prometheus()
    (target,) = json.loads(server.targets.read_text())
    assert target["targets"] == [f"127.0.0.1:{server.metrics_port}"]
    server.stop()
    assert not server.targets.exists()


def test_vllms_own_figures_come_through_rays_agent_too(local: Local) -> None:
    long = "Which of these words is the last? " + "word " * 400  # longer than a block of the prefix cache
    body = {"model": "writer", "messages": [{"role": "user", "content": long}], "max_tokens": 8}
    for _ in range(2):
        assert httpx.post(f"{local.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
    asked = [*expressions("engines").values(), *(e for name, e in alerts().items() if "Engine" in name)]
    wanted = {name for expression in asked for name in names(expression)}
    seen = set[str]()

    def missing() -> set[str]:
        text = httpx.get(f"http://127.0.0.1:{local.metrics_port}/metrics", timeout=10).text
        lines = (line for line in text.splitlines() if 'model_name="writer"' in line or "ray_serve" in line)
        seen.update(line.partition("{")[0] for line in lines)  # levels of an idle engine are shown for 20 s
        return wanted - seen

    wait_until_none(missing)
