"""`--fast`: what HAProxy binds on one machine, and which ports must be free for it. No HAProxy is started."""

import re
import socket
import subprocess
from pathlib import Path

import pytest

from cluster.environment import fast_environment
from cluster.processes import ServeError, check_nothing_in_the_way, free_port

CONFIG = """global
    stats socket /tmp/haproxy-serve/admin.sock mode 666 level admin expose-fd listeners
frontend prometheus
    bind :9101
frontend http_frontend
    bind 127.0.0.1:8000
listen stats
  bind *:8404
"""


def test_haproxys_statistics_and_metrics_are_put_on_loopback_its_admin_socket_is_its_owners_and_all_else_is_passed_on(
    tmp_path: Path,
) -> None:
    config = tmp_path / "haproxy.cfg"
    config.write_text(CONFIG)
    program = fast_environment()["RAY_SERVE_HAPROXY_BINARY_PATH"]
    command = [program, "-db", "-f", str(config), "-x", "old.sock", "-sf", "12"]
    ran = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", "PODIUM_HAPROXY": "echo"}, capture_output=True
    )
    assert ran.stdout.decode().split() == command[1:]
    assert re.findall(r"bind (\S+)", config.read_text()) == [
        "127.0.0.1:9101",
        "127.0.0.1:8000",
        "127.0.0.1:8404",
    ]
    socket_line = next(line for line in config.read_text().splitlines() if "stats socket" in line)
    assert socket_line.split() == [
        "stats", "socket", "/tmp/haproxy-serve/admin.sock", "mode", "600", "level", "admin", "expose-fd", "listeners"
    ]  # fmt: skip


def test_rays_template_binds_as_the_script_expects() -> None:
    from ray.serve._private.haproxy_templates import HAPROXY_CONFIG_TEMPLATE

    bound = re.findall(r"^ *bind (.+)$", HAPROXY_CONFIG_TEMPLATE, re.MULTILINE)
    assert [line for line in bound if "frontend_host" not in line] == [
        ":{{ config.metrics_port }}",
        "*:{{ config.stats_port }}",
    ]
    assert "stats socket {{ config.socket_path }} mode 666 level admin" in HAPROXY_CONFIG_TEMPLATE


def test_a_taken_port_of_haproxys_is_told_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        other = taken.getsockname()[1]
        ports = {
            "RAY_SERVE_HAPROXY_STATS_PORT": str(other),
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        }
        with pytest.raises(ServeError, match=f"Port {other} is taken"):
            check_nothing_in_the_way(free_port(), fast_environment() | ports)
