"""Embedded default: Ray Serve behind HAProxy, and two vLLM engines. The test process leads the Ray cluster, so that a
test can count an engine's unfinished requests and deploy more applications.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.local.environment import fast_environment
from cluster.local.folder import make_folder
from cluster.local.processes import free_port, haproxy_ports
from tests.conftest import ROOT
from tests.otlp import Receiver, receiving


@dataclass(frozen=True)
class Local:
    url: str
    spans: Receiver
    metrics_port: int

    def unfinished(self, deployment: str) -> int:
        """Return the number of requests in the engine of `deployment`."""
        from ray import serve

        handle: Any = serve.get_deployment_handle(deployment, "default")
        return handle.n_unfinished.remote().result(timeout_s=10)


def deploy(name: str, settings: Path, user_config: dict[str, Any] | None = None) -> None:
    """Deploy an application at `/NAME`, as `serve deploy` does with a config file. Replace an earlier one."""
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    app: dict[str, Any] = {
        "name": name, "route_prefix": f"/{name}", "import_path": "serving.app:build_app",
        "args": {"settings": str(settings)}, "runtime_env": {"env_vars": {"PYTHONPATH": str(ROOT)}},
    }  # fmt: skip
    if user_config is not None:
        app["deployments"] = [{"name": "router", "user_config": user_config}]
    client: Any = _get_global_client()
    client.deploy_apps(ServeDeploySchema.model_validate({"applications": [app]}), _blocking=False)
    client._wait_for_application_running(
        name, timeout_s=240
    )  # Ray's own limit of 60 s is short on a busy machine


@contextmanager
def running(folder: Path) -> Iterator[Local]:
    import ray
    from ray import serve

    port, metrics_port, own = free_port(), free_port(), make_folder(f"{ROOT}:tests:{os.getpid()}")
    with receiving() as spans, pytest.MonkeyPatch.context() as patch:
        environment = fast_environment() | own.environment | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{spans.port}",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "OTEL_SERVICE_NAME": "podium-proxy",
            "RAY_metrics_report_interval_ms": "1000",
        }  # fmt: skip
        haproxy = haproxy_ports(environment)
        for name, value in (environment | haproxy).items():
            patch.setenv(name, value)
        from serving.app import build_app

        ray.init(
            "local",
            namespace="serve",
            num_cpus=2,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            _metrics_export_port=metrics_port,
        )
        try:
            serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
            serve.run(build_app({"settings": str(_with_room_for_adapters(folder))}))
            for name in haproxy:
                patch.delenv(name)  # other servers that tests of this process start choose their own
            yield Local(f"http://127.0.0.1:{port}", spans, metrics_port)
        finally:
            serve.shutdown()
            ray.shutdown()
            own.remove()


def _with_room_for_adapters(folder: Path) -> Path:
    """Write the default settings with a conductor engine that accepts adapters, so that tests can share it."""
    settings = yaml.safe_load((ROOT / "cluster/local.yaml").read_text())
    conductor = next(worker for worker in settings["workers"] if worker["name"] == "conductor")
    conductor["engine"] = conductor["engine"] | {"enable_lora": True, "speculative_config": None}
    path = folder / "local.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path
