"""Child process of a local server, which runs `serve run` on its own new Ray instance.

The process ends when its parent ends. Only `server.py` starts it, as `python -m cluster.local.child`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import yaml
from typer import Option

from cluster.local.folder import record_shared_memory
from cluster.local.processes import (
    HOST,
    ROOT,
)
from cluster.local.server import APP
from podium.command_line.program import Program
from serving import IS_CHECKOUT

TOO_BUSY = (
    "Ray's own processes did not start within Ray's limit of 30 s, because this machine is too busy or too slow. "
    "End other programs, then start the server again."
)


def watch_parent(parent_pid: int) -> None:
    """Interrupt this process as Ctrl-C does when its parent has ended, even if SIGKILL ended it."""

    def look() -> None:
        while os.getppid() == parent_pid:
            time.sleep(1)
        record_shared_memory(Path(os.environ["RAY_TMPDIR"]))  # read by `sweep_folders` of a later server
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=look, daemon=True, name="watch-parent").start()


def app_arguments(target: list[str]) -> Iterator[dict[str, str]]:
    """Yield the arguments of each Podium application in `target`, an application with arguments or a Serve
    config.
    """
    if target[0] == APP:
        yield dict(argument.split("=", 1) for argument in target[1:])
    elif target[0].endswith(".yaml"):
        config = yaml.safe_load(Path(target[0]).read_text())
        yield from (each.get("args", {}) for each in config["applications"] if each["import_path"] == APP)


def check(host: str, target: list[str]) -> None:
    """Check the settings, the store and the address in a second, because starting Ray takes much longer."""
    import serving.app
    from cluster.local.exposure import require_key
    from cluster.local.store_version import require_version

    for arguments in app_arguments(target):
        serving.app.build_app(arguments)
        require_version(arguments["settings"], os.environ)
        require_key(host, arguments["settings"], os.environ)


main = Program("python -m cluster.local.child")


@main.command()
def run_child(
    target: list[str],
    port: Annotated[int, Option()],
    metrics_port: Annotated[int, Option()],
    cpus: Annotated[int, Option()],
    dashboard_port: int | None = None,
    host: str = HOST,
) -> int:
    """Run `serve run TARGET` on a new Ray instance with the given HTTP address."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Until Ray runs: Python handles no signal while Ray's C++ code waits for its processes, which end with this one.
        signal.signal(number, signal.SIG_DFL)
    watch_parent(os.getppid())
    import ray
    from ray import serve
    from ray.serve.scripts import run as serve_run

    import serving.app  # noqa: F401 (sets the tracing variables that Ray's processes inherit) # pyright: ignore[reportUnusedImport]
    from conductor.errors import StoreUnavailable
    from serving.database.address import StoreError
    from serving.edge.checks import raise_file_limit
    from serving.settings.settings import SettingsError

    try:
        check(host, target)
    except (SettingsError, StoreError, StoreUnavailable) as error:
        print(f"{error.message} {error.detail}".rstrip())
        return 1
    if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1":
        # Only HAProxy listens on `host` (cluster/haproxy_guarded.sh). Ray would put the replicas' ports there too.
        os.environ["PODIUM_HAPROXY_HTTP_ADDRESS"], host = host, HOST
    raise_file_limit()  # a connection is a file, and all of Ray's processes inherit the limit
    try:
        cast(Any, ray).init(
            "local",
            namespace="serve",
            num_cpus=cpus,
            include_dashboard=dashboard_port is not None,
            dashboard_host=HOST,
            dashboard_port=dashboard_port,
            object_store_memory=256 * 1024 * 1024,
            _node_ip_address=HOST,
            _metrics_export_port=metrics_port,
        )
    except Exception as error:
        if "timed out" in str(error).lower():  # Ray raises a bare Exception
            print(TOO_BUSY)
            return 1
        raise
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job starts with SIGINT ignored
    cast(Any, serve).start(proxy_location="HeadOnly", http_options={"host": host, "port": port})
    # It catches Ctrl-C and shuts Serve down. It also returns normally after an error, so the parent checks
    # whether the server was ready.
    folder = ROOT if IS_CHECKOUT else Path.cwd()  # for plug-ins
    serve_run.main(args=["--app-dir", str(folder), *target], standalone_mode=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
