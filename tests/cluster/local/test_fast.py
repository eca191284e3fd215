"""HAProxy in front of Podium: its addresses, its ports, its own answers, and machines on which it cannot run."""

import asyncio
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from ray.serve._private import constants

from cluster.local.environment import GUARD, fast_environment, find_haproxy, proxy_environment
from cluster.local.processes import HAPROXY_PORTS, ROOT, ServeError, check_nothing_in_the_way, free_port
from cluster.local.serve import main
from cluster.local.server import Server
from conductor.errors import Interrupted
from serving.errors import TABLE

CONFIG = """global
    stats socket /tmp/haproxy-serve/admin.sock mode 666 level admin expose-fd listeners
frontend prometheus
    bind :9101
frontend http_frontend
    bind 127.0.0.1:8000
listen stats
  bind *:8404
"""


def test_only_haproxys_statistics_metrics_and_admin_socket_are_made_private(
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


BOUNDS = {
    "global": ["tune.sndbuf.client 131072", "tune.rcvbuf.server 131072"],
    "defaults": ["timeout http-request 10s"],
    "frontend http_frontend": [
        "stick-table",
        "tcp-request connection reject",
        "http-request del-header x-forwarded-for",
        "option forwardfor",
        "http-request wait-for-body time 10s",
    ],
}


def guarded(config: Path, **env: str) -> str:
    """Run the HAProxy wrapper twice, as after a crash. Return the configuration that it leaves."""
    script = ROOT / "cluster" / "haproxy_guarded.sh"
    for _ in range(2):
        ran = subprocess.run(
            [script, "-db", "-f", config],
            env={"PATH": "/usr/bin:/bin", "PODIUM_HAPROXY": "true", **env},
            capture_output=True,
        )
        assert (ran.returncode, ran.stderr) == (0, b"")
    return config.read_text()


def rays_config(folder: Path, backend_port: int = 9) -> Path:
    """Write Ray's configuration for one application, with Ray's own code."""
    from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
    from ray.serve.config import HTTPOptions

    cfg = HAProxyConfig(http_options=HTTPOptions(host="127.0.0.1", port=free_port()), socket_path=str(folder / "admin.sock"), metrics_enabled=False, stats_port=free_port(), metrics_port=free_port(), maxconn=16384)  # fmt: skip
    backend = BackendConfig(
        name="podium",
        path_prefix="/",
        app_name="podium",
        servers=[ServerConfig("one", "127.0.0.1", backend_port)],
    )
    api = HAProxyApi(
        cfg=cfg, backend_configs={"podium": backend}, config_file_path=str(folder / "haproxy.cfg")
    )
    api._generate_config_file_internal()
    return folder / "haproxy.cfg"


def test_haproxys_statistics_and_metrics_are_on_loopback_by_default_on_clusters_too(
    tmp_path: Path,
) -> None:
    for variables, address in ({}, "127.0.0.1"), ({"PODIUM_HAPROXY_METRICS_ADDRESS": "10.0.0.7"}, "10.0.0.7"):
        for own in ("127.0.0.1:8000", "*:8000"):
            config = tmp_path / "haproxy.cfg"
            config.write_text(CONFIG.replace("127.0.0.1:8000", own))
            bound = re.findall(r"bind (\S+)", guarded(config, **variables))
            assert bound == [f"{address}:9101", own, f"{address}:8404"]


@pytest.mark.parametrize(
    ("address", "bound"),
    [("0.0.0.0", "0.0.0.0:8000 proto"), ("::", ":::8000 v4v6"), ("::1", "::1:8000 proto")],
)
def test_only_haproxy_listens_on_the_configured_address(address: str, bound: str, tmp_path: Path) -> None:
    config = tmp_path / "haproxy.cfg"
    config.write_text(CONFIG)
    text = guarded(config, PODIUM_HAPROXY_HTTP_ADDRESS=address)
    assert re.findall(r"bind (\S+ \S+)", text) == ["127.0.0.1:9101 proto", bound, "127.0.0.1:8404 proto"]


@pytest.mark.parametrize(("address", "bound"), [("0.0.0.0", "0.0.0.0:9091 proto"), ("::", ":::9091 v4v6")])
def test_haproxy_exposes_only_rays_metrics_to_other_machines(
    address: str, bound: str, tmp_path: Path
) -> None:
    plain, config = guarded(rays_config(tmp_path)), tmp_path / "haproxy.cfg"
    text = guarded(rays_config(tmp_path), PODIUM_HAPROXY_RAY_METRICS=f"{address}:9091 9090")
    assert "ray_metrics" not in plain
    added = text[text.index("frontend ray_metrics") :]
    assert re.findall(r"bind (\S+ \S+)", added) == [bound]
    assert re.findall(r"server \S+ (\S+)", added) == ["127.0.0.1:9090"]
    assert "return status 404 unless { path /metrics }" in added
    checked = subprocess.run(
        [fast_environment()["PODIUM_HAPROXY"], "-c", "-f", config], capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr.decode()


def test_metrics_on_another_address_without_haproxy_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--proxy", "serve", "--metrics-host", "0.0.0.0", "--port", "0"]) == 1
    assert "--metrics-host needs HAProxy" in capsys.readouterr().err


def test_the_guard_does_not_start_itself_recursively(tmp_path: Path) -> None:
    config = tmp_path / "haproxy.cfg"
    config.write_text(CONFIG)
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "RAY_SERVE_HAPROXY_BINARY_PATH": str(GUARD)}  # fmt: skip
    ran = subprocess.run([GUARD, "-db", "-f", config, "-v"], env=environment, capture_output=True, timeout=60)
    assert ran.stdout.startswith(b"HAProxy version")


@pytest.mark.parametrize("variable", ["PODIUM_HAPROXY", "RAY_SERVE_HAPROXY_BINARY_PATH"])
def test_a_configured_haproxy_is_used_but_never_the_guard_itself(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = find_haproxy()
    own = tmp_path / "haproxy"
    own.symlink_to(bundled)
    monkeypatch.setenv(variable, str(own))
    assert fast_environment()["PODIUM_HAPROXY"] == str(own)
    monkeypatch.setenv(variable, str(GUARD))
    assert fast_environment()["PODIUM_HAPROXY"] == bundled


@pytest.mark.parametrize("program", ["/bin/false", "/absent"])
def test_serves_own_proxy_replaces_an_haproxy_that_cannot_run(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PODIUM_HAPROXY", program)
    assert proxy_environment(None) == {}
    printed = capsys.readouterr().err
    assert f"HAProxy at {program} cannot run" in printed
    assert "uses Ray Serve's own proxy instead" in printed
    assert (proxy_environment("serve"), capsys.readouterr().err) == ({}, "")
    with pytest.raises(ServeError, match="--proxy serve"):
        proxy_environment("haproxy")


@pytest.mark.parametrize("option", [["--fast"], ["--proxy", "haproxy"]])
def test_an_explicit_haproxy_that_cannot_run_fails_before_the_start(
    option: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PODIUM_HAPROXY", "/absent")
    assert main([*option, "--port", "0"]) == 1
    assert "HAProxy at /absent cannot run" in capsys.readouterr().err


def test_haproxy_is_the_default_proxy() -> None:
    assert proxy_environment(None) == fast_environment() == proxy_environment("haproxy")


def test_haproxy_accepts_rays_configuration_with_our_limits(tmp_path: Path) -> None:
    config = rays_config(tmp_path)
    text = guarded(config)
    for section, bounds in BOUNDS.items():
        own = text.split(f"\n{section}\n")[1].split("\nfrontend ")[0]
        assert [bound for bound in bounds if own.count(f"    {bound}") != 1] == []
    (maxconn,) = re.findall(r"^global\n(?:.*\n)*? *maxconn (\d+)$", text, re.MULTILINE)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert int(maxconn) == min(16384, (files - 500) * 2 // 5)
    ran = subprocess.run(
        [fast_environment()["PODIUM_HAPROXY"], "-c", "-f", config], capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stderr.decode()


async def test_clients_get_an_openai_error_while_no_router_responds(tmp_path: Path) -> None:
    config = rays_config(tmp_path)
    text = guarded(config)
    url = (
        "http://"
        + re.findall(r"^frontend http_frontend\n(?:.*\n)*? *bind (127\.0\.0\.1:\d+)", text, re.MULTILINE)[0]
    )
    proxy = await asyncio.create_subprocess_exec(
        fast_environment()["PODIUM_HAPROXY"], "-db", "-f", str(config)
    )
    try:
        async with httpx2.AsyncClient(trust_env=False) as client:
            async with asyncio.timeout(20):
                while True:
                    try:
                        answer = await client.post(f"{url}/v1/chat/completions", json={})
                        break
                    except httpx2.ConnectError:
                        await asyncio.sleep(0.05)
    finally:
        proxy.kill()
        await proxy.wait()
    row = TABLE[Interrupted]
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (row.status, row.type, row.code)
    assert (answer.headers["retry-after"], answer.headers["content-type"]) == ("1", "application/json")


@pytest.mark.parametrize(
    "request_line",
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", b"CONNECT example.com:443 HTTP/1.1\r\n\r\n"],
)
async def test_haproxy_rejects_http_2_and_connect(tmp_path: Path, request_line: bytes) -> None:
    """100 HTTP/2 requests share a connection, so the connection limit would have no effect."""
    file = rays_config(tmp_path)
    text = guarded(file)
    assert text.count(" proto h1\n") == 3
    address = re.findall(
        r"^frontend http_frontend\n(?:.*\n)*? *bind (127\.0\.0\.1):(\d+)", text, re.MULTILINE
    )[0]
    proxy = await asyncio.create_subprocess_exec(fast_environment()["PODIUM_HAPROXY"], "-db", "-f", str(file))
    try:
        async with asyncio.timeout(20):
            while True:
                try:
                    reader, writer = await asyncio.open_connection(*address)
                    break
                except ConnectionError:
                    await asyncio.sleep(0.05)
            writer.write(request_line)
            received = await reader.readuntil(b"\r\n\r\n")
            writer.close()
    finally:
        proxy.kill()
        await proxy.wait()
    assert received.startswith(b"HTTP/1.1 400 "), received
    assert (b"application/json" in received) == request_line.startswith(b"CONNECT")


def test_a_folder_name_may_contain_special_characters(tmp_path: Path) -> None:
    folder = tmp_path / "a|b&c"
    folder.mkdir()
    page = f"{folder}/interrupted.http"
    assert [
        line.split()[1:] for line in guarded(rays_config(folder)).splitlines() if "errorfile 50" in line
    ] == [
        ["502", page],
        ["503", page],
        ["504", f"{folder}/500.http"],
    ]


def test_connections_per_address_are_limited_as_configured(tmp_path: Path) -> None:
    config = rays_config(tmp_path)
    assert "sc0_conn_cur gt 123 }" in guarded(config, PODIUM_HAPROXY_CONNECTIONS_PER_SOURCE="123")
    (tmp_path / "any").mkdir()
    assert "reject" not in guarded(rays_config(tmp_path / "any"), PODIUM_HAPROXY_CONNECTIONS_PER_SOURCE="0")


@pytest.mark.parametrize("per_source", ["0", "100"])
@pytest.mark.parametrize("forged", [None, "127.0.0.1", "::1, 127.0.0.1"])
async def test_haproxy_forwards_the_real_client_address_whatever_the_client_sends(
    tmp_path: Path, per_source: str, forged: str | None
) -> None:
    """A second loopback address stands for another machine."""
    received = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        values = [line.split(":", 1)[1] for line in head.split("\r\n") if line.startswith("x-forwarded-for:")]
        received.set_result([each.strip() for each in ",".join(values).split(",")])
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    backend = await asyncio.start_server(answer, "127.0.0.1", 0)
    config = rays_config(tmp_path, backend.sockets[0].getsockname()[1])
    config.write_text(config.read_text().replace(" check", ""))  # no probe before the request
    text = guarded(config, PODIUM_HAPROXY_CONNECTIONS_PER_SOURCE=per_source)
    address = re.findall(
        r"^frontend http_frontend\n(?:.*\n)*? *bind (127\.0\.0\.1):(\d+)", text, re.MULTILINE
    )[0]
    proxy = await asyncio.create_subprocess_exec(
        fast_environment()["PODIUM_HAPROXY"], "-db", "-f", str(config)
    )
    head = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{f'X-Forwarded-For: {forged}' + chr(13) + chr(10) if forged else ''}\r\n"
    try:
        async with asyncio.timeout(20):
            while not received.done():
                try:
                    _, writer = await asyncio.open_connection(*address, local_addr=("127.0.0.9", 0))
                    writer.write(head.encode())
                except ConnectionError:
                    await asyncio.sleep(0.05)
                    continue
                named = await received
                writer.close()
    finally:
        proxy.kill()
        await proxy.wait()
        backend.close()
    assert named[-1] == "127.0.0.9"


def test_rays_haproxy_template_has_the_expected_bind_lines() -> None:
    from ray.serve._private.haproxy_templates import HAPROXY_CONFIG_TEMPLATE

    bound = re.findall(r"^ *bind (.+)$", HAPROXY_CONFIG_TEMPLATE, re.MULTILINE)
    assert [line for line in bound if "frontend_host" not in line] == [
        ":{{ config.metrics_port }}",
        "*:{{ config.stats_port }}",
    ]
    assert "stats socket {{ config.socket_path }} mode 666 level admin" in HAPROXY_CONFIG_TEMPLATE


def test_a_second_server_uses_other_haproxy_ports_except_for_configured_ones() -> None:
    named = {"RAY_SERVE_HAPROXY_STATS_PORT": "8404"}
    servers = [Server(port=0, env=fast_environment()), Server(port=0, env=fast_environment())]
    numbers = [server.environment[name] for server in servers for name in HAPROXY_PORTS]
    assert len({*numbers}) == 2 * len(HAPROXY_PORTS) > 4
    assert Server(port=0, env=fast_environment() | named).environment.items() >= named.items()
    assert not HAPROXY_PORTS.keys() & Server(port=0).environment.keys()


def test_ray_fixes_no_other_ports_if_haproxy_is_used() -> None:
    """A new version of Ray may add a fixed port, which a second server would share without an error."""
    source = Path(constants.__file__).read_text()
    fixed = set(re.findall(r'"(RAY_SERVE_\w+_PORT)", "?\d{4,5}', source))
    ranges = {name for name in fixed if "DIRECT_INGRESS_M" in name}  # a replica tries the next port
    assert fixed - ranges == HAPROXY_PORTS.keys()


def test_a_haproxy_port_in_use_is_reported_before_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = listener.getsockname()[1]
        ports = {
            "RAY_SERVE_HAPROXY_STATS_PORT": str(other),
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        }
        with pytest.raises(ServeError, match=f"Port {other} is in use"):
            check_nothing_in_the_way(free_port(), fast_environment() | ports)
