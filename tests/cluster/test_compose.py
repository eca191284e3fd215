"""cluster/compose without containers: how Docker, Podium and Prometheus read it."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from podium.command_line.program import load as load_verb
from serving.settings.settings import load
from tests.conftest import ROOT
from tests.prometheus import promtool

FOLDER = ROOT / "cluster" / "compose"
Data = dict[str, Any]

# Fields that the file may use. All but `name` were checked by the JSON Schema of docker-compose 1.29.2 (Debian 12), and `name` is in the
# newer schema/compose-spec.json of compose-spec/compose-spec (2026-12-01). Compose rejects fields that it does not know.
TOP = {"name", "services", "volumes"}
SERVICE = {
    "cap_drop", "command", "depends_on", "env_file", "environment", "healthcheck", "image", "init", "logging", "mem_limit",
    "ports", "restart", "security_opt", "shm_size", "stop_grace_period", "volumes",
}  # fmt: skip
HEALTH = {"interval", "retries", "start_period", "test", "timeout"}


@pytest.fixture(scope="module")
def compose() -> Data:
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())


def test_the_compose_file_has_only_fields_of_the_compose_specification(compose: Data) -> None:
    assert compose.keys() == TOP
    for each in compose["services"].values():
        assert each.keys() <= SERVICE
        assert each["healthcheck"].keys() <= HEALTH
        assert each["logging"].keys() == {"driver", "options"}


def test_every_service_has_a_memory_limit_of_at_least_twice_its_shared_memory(compose: Data) -> None:
    for each in compose["services"].values():
        assert megabytes(each["mem_limit"]) >= 2 * megabytes(each.get("shm_size", "0mb"))


def megabytes(size: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(mb|gb?)", size).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return int(number) * (1 if unit == "mb" else 1024)


def test_prometheus_and_jaeger_get_no_secrets(compose: Data) -> None:
    for name in ("prometheus", "jaeger"):
        service = compose["services"][name]
        assert "env_file" not in service
        assert "${" not in str(service)


def test_services_wait_until_their_dependencies_are_healthy(compose: Data) -> None:
    assert compose["services"].keys() == {"router", "postgres", "prometheus", "jaeger"}
    assert all(each["healthcheck"]["test"][0] == "CMD" for each in compose["services"].values())
    assert all(each["restart"] == "unless-stopped" for each in compose["services"].values())
    assert compose["services"]["router"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}


def test_third_party_images_are_pinned_by_digest_and_ours_by_version(compose: Data) -> None:
    images = {name: each["image"] for name, each in compose["services"].items()}
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert images.pop("router") == f"${{PODIUM_IMAGE:-localhost/podium:{version[1]}}}"
    assert all(re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", each) for each in images.values()), images


def test_ports_are_on_loopback(compose: Data) -> None:
    ports = [port for each in compose["services"].values() for port in each.get("ports", [])]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_mounted_files_and_volumes_exist(compose: Data) -> None:
    mounts = [
        mount.split(":")[0] for each in compose["services"].values() for mount in each.get("volumes", [])
    ]
    for mount in mounts:
        assert (FOLDER / mount).exists() if mount.startswith(".") else mount in compose["volumes"], mount
    assert {mount for mount in mounts if not mount.startswith(".")} == compose["volumes"].keys()


def test_secrets_come_from_the_env_file_and_the_password_is_required(compose: Data) -> None:
    example = (FOLDER / "env.example").read_text()
    text = (FOLDER / "compose.yaml").read_text()
    used = set(re.findall(r"\$\{(\w+)", text))
    assert used <= set(re.findall(r"^(?:# )?(\w+)=", example, re.MULTILINE))
    assert text.count("${POSTGRES_PASSWORD:?") == 2
    assert re.findall(r"^\w+=(.+)$", example, re.MULTILINE) == []
    assert compose["services"]["router"]["env_file"] == [".env"]
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_router_uses_valid_options_and_the_port_that_prometheus_scrapes(compose: Data) -> None:
    command = compose["services"]["router"]["command"]
    help_text = _help("cluster.local.serve")
    assert command[:2] == ["podium", "serve"]
    assert all(option in help_text for option in command if option.startswith("--"))
    port = command[command.index("--metrics-port") + 1]
    scraped = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"]
    assert [each["static_configs"] for each in scraped] == [[{"targets": [f"router:{port}"]}]]


def _help(target: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        load_verb(target)(["--help"])
    return printed.getvalue()


def test_prometheus_accepts_its_configuration_with_the_rules(tmp_path: Path) -> None:
    for source in (FOLDER / "prometheus.yaml", ROOT / "cluster" / "alerts.yaml"):
        (tmp_path / source.name).write_text(source.read_text())
    assert "SUCCESS" in promtool("check", "config", tmp_path / "prometheus.yaml")
    ours, other = (
        yaml.safe_load(path.read_text())["scrape_configs"][0]["metric_relabel_configs"]
        for path in (FOLDER / "prometheus.yaml", ROOT / "cluster" / "prometheus.yaml")
    )
    assert ours == other


def test_its_settings_are_valid() -> None:
    settings = load(FOLDER / "settings" / "settings.yaml")
    assert {each.name for each in settings.workers} == {"strong", "fast", "careful", "wide"}
