"""All ports of a real server on both paths, Ray's dashboard included, probed without a credential."""

import subprocess
import sys

import pytest

from cluster.local.ports import METRICS
from tests.live.open_ports import CREDENTIALS, note, ports_once_open
from tests.live.proxies.conftest import Proxied

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


def test_make_serve_listens_on_loopback_and_ray_requires_its_token(proxied: Proxied) -> None:
    server = proxied.server
    assert server.dashboard_port is not None
    ports = ports_once_open(server.tag, {server.port, server.metrics_port, server.dashboard_port})
    listing = note("fast" if proxied.fast else "default", ports)
    numbers = {each.port: each for each in ports}
    assert [each for each in ports if not each.is_on_loopback] == [], listing
    assert numbers[server.metrics_port].asks_for == METRICS
    assert sum(each.asks_for == "a token (gRPC)" for each in ports) >= 5, listing
    assert numbers[server.dashboard_port].asks_for in CREDENTIALS, listing
    if proxied.fast:
        assert len([each for each in ports if "haproxy" in each.process]) >= 3, listing
    listed = subprocess.run([sys.executable, "-m", "podium.cli", "exposure"], capture_output=True, text=True)
    assert listed.returncode == 0
    assert str(server.dashboard_port) in listed.stdout
