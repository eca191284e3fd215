"""`podium serve` and `podium stop`: run a server in the foreground until Ctrl-C, and end forgotten ones."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import psutil
from typer import Option

from cluster.local.environment import Proxy, proxy_environment
from cluster.local.folder import folders, record_shared_memory, sweep_folders
from cluster.local.processes import HOST, ROOT, ServeError, end, leads, processes_of
from cluster.local.server import SETTINGS, STOP_WITHIN_S, Server
from podium.command_line.options import parse_address, parse_port
from podium.command_line.program import CommandError, Program, UsageError
from serving import IS_CHECKOUT, resolve_path

READY = """
Podium is ready at {url}  (stop it with Ctrl-C; log: {log}; metrics: {metrics})
{console}
Store of keys, budgets and runs: {store}

  curl {url}/v1/chat/completions -H 'content-type: application/json' {header}\\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="{key}")
  stream = client.chat.completions.create(
      model="{model}",
      messages=[{{"role": "user", "content": "What is the capital of France?"}}],
      stream=True,
  )
  for chunk in stream:
      print(chunk.choices[0].delta.content or "" if chunk.choices else "", end="", flush=True)
"""


def follow(server: Server) -> None:
    """Print new lines of the server's log until the server ends or Ctrl-C is pressed."""
    with server.log.open(errors="replace") as log:
        log.seek(0, os.SEEK_END)
        size_bytes = 0
        while server.is_running():
            size_before_bytes, size_bytes = size_bytes, os.fstat(log.fileno()).st_size
            if size_bytes < size_before_bytes:  # rotated
                log.seek(0)
            if text := log.read():
                print(text, end="", flush=True)
            time.sleep(0.3)


def ready_text(server: Server, log: Path) -> str:
    """Return the text to print once the server is ready. Examples include a key if one is required."""
    models = server.read("/v1/models")
    is_open = models is not None
    return READY.format(
        url=server.url,
        model=first_model(models),
        log=log,
        console=console_text(server),
        store=store_text(server),
        metrics=f"http://{HOST}:{server.metrics_port}/metrics",
        key="none" if is_open else "YOUR_KEY",
        header="" if is_open else "-H 'authorization: Bearer YOUR_KEY' ",
    )


def store_text(server: Server) -> str:
    """Describe where runs and keys are stored, and how to use another store."""
    from serving.database.address import find_address
    from serving.settings.settings import load

    settings = load(resolve_path(Path(server.settings))).store
    address = find_address(settings, server.environment)
    if settings.path is not None or server.environment.get(settings.url_env):
        return address.name
    return f"{address.name}\n(shared by all servers of this account; to use another store, set `store: {{path: FILE}}` in {server.settings})"


def first_model(listed: bytes | None) -> str:
    """Return the first model in the body of `/v1/models`, preferably with a conductor. For None, return the
    default name.
    """
    names: list[dict[str, Any]] = json.loads(listed)["data"] if listed else []
    leading = [each["id"] for each in names if each["podium"]["kind"] == "conductor"]
    return next(iter([*leading, *(each["id"] for each in names)]), "podium-mini")


def console_text(server: Server) -> str:
    """Return a line with the URL of the web console, or with the command that builds it."""
    if server.answers("/console/"):
        return f"Web console: {server.url}/console/"
    if not IS_CHECKOUT:
        return "This package has no web console, because it was not built with `make wheel`."
    return "The web console is not built. Run `make console` to build it."


def serve_until_interrupted(server: Server) -> int:
    """Run the server until it is interrupted. Return exit code 0 unless it failed or a process was killed."""
    try:
        with server:
            log = server.log.relative_to(ROOT) if IS_CHECKOUT else server.log
            print(ready_text(server, log), flush=True)
            follow(server)
            print(f"\nThe server ended unexpectedly.\n{server.log_tail()}", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        if server.killed:
            print(
                f"\nStopped, but these processes had to be killed: {', '.join(map(str, server.killed))}. See {server.log}.",
                file=sys.stderr,
            )
            return 1
        print("\nStopped. No process is left running.")
        return 0
    except ServeError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1


def stop_everything() -> int:
    """End every server of this checkout, and the processes that crashed servers left running."""
    for path in folders():
        record_shared_memory(path)
    leaders = [p for p in processes_of(f"{ROOT}:") if leads(p)]
    for process in leaders:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGINT)
    psutil.wait_procs(leaders, timeout=STOP_WITHIN_S)
    rest = processes_of(f"{ROOT}:")
    killed = end(rest, within_s=5)
    sweep_folders()
    print(
        f"Stopped servers: {len(leaders)}. Stopped processes of crashed servers: {len(rest)} ({len(killed)} had to be killed)."
    )
    return 0


def interrupt(_number: int, _frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt. Ignore further signals, so that the processes of the server can be ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.stdout.isatty():
        print("\nStopping ...", flush=True)
    raise KeyboardInterrupt


def stop_on_signals() -> None:
    """Make the first Ctrl-C or SIGTERM raise KeyboardInterrupt."""
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Command-line options: the settings to serve on this machine, and overrides of them."""

    settings: Annotated[str, Option(metavar="FILE", help="settings file to serve")] = SETTINGS
    port: Annotated[int, Option(parser=parse_port, help="HTTP port; 0 chooses a free one")] = 8000
    model: Annotated[
        str | None,
        Option(
            help="model to serve instead of the local models in the settings file: a name on a model hub, or a folder"
        ),
    ] = None
    conductors: Annotated[
        list[str] | None,
        Option(
            "--conductor",
            metavar="WORKER",
            help="worker that writes the plans, instead of the conductor in the settings file",
        ),
    ] = None
    proxy: Annotated[
        Proxy | None,
        Option(
            help="proxy in front of the routers: HAProxy, as in production, or Ray Serve's own",
            show_default="haproxy if it can run on this machine",
        ),
    ] = None
    fast: Annotated[bool, Option("--fast", hidden=True)] = False

    @property
    def conductor(self) -> str | None:
        """Worker that writes the plans, or None for the one in the settings file."""
        if self.conductors and len(self.conductors) > 1:
            raise UsageError("--conductor may be used only once.")
        return self.conductors[0] if self.conductors else None

    def environment(self) -> dict[str, str]:
        """Return the environment variables that select the proxy."""
        try:
            return proxy_environment("haproxy" if self.fast else self.proxy)
        except ServeError as error:
            raise CommandError(str(error)) from error


def make_models(options: ServerOptions) -> None:
    """Make the bundled models that the settings serve and that do not exist yet.

    In a checkout, set-up makes them.

    Raises:
        CommandError: a model could not be made. The reason was printed.
    """
    if IS_CHECKOUT or find_spec("vllm") is None:
        return
    from cluster.local import local_models
    from cluster.local.needs import needs_of
    from serving.settings.overrides import settings_to_serve
    from serving.settings.settings import SettingsError

    try:
        served = settings_to_serve(resolve_path(Path(options.settings)), options.model, options.conductor)
    except SettingsError:  # the server reports it
        return
    absent = [name for name in needs_of(served).models if not resolve_path(Path(name)).is_dir()]
    if absent and local_models.main(absent) != 0:
        raise CommandError("The bundled models could not be made. To serve other models, use --settings.")


main, stop = Program("podium serve"), Program("podium stop")


@main.command(epilog="Example: podium serve --settings cluster/api.yaml --port 8080")
def serve(
    options: ServerOptions,
    host: Annotated[
        str,
        Option(
            parser=parse_address,
            help="IP address to listen on; 0.0.0.0 also serves other machines, which requires an API key",
        ),
    ] = HOST,
    metrics_port: Annotated[
        int, Option(parser=parse_port, help="port of the Prometheus metrics", show_default="a free one")
    ] = 0,
    metrics_host: Annotated[
        str,
        Option(
            parser=parse_address,
            help="IP address of the metrics; 0.0.0.0 lets a Prometheus on another machine read them (needs HAProxy)",
        ),
    ] = HOST,
    cpus: Annotated[int, Option(help="number of logical CPUs that Ray may assign")] = 2,
) -> int:
    """Serve Podium on this machine until Ctrl-C. Only this machine can reach it, unless --host is set."""
    conductor, environment = options.conductor, options.environment()
    if metrics_host != HOST and "PODIUM_HAPROXY" not in environment:
        raise CommandError(
            "--metrics-host needs HAProxy, which does not run with this --proxy or on this machine."
        )
    stop_on_signals()
    make_models(options)
    server = Server(
        settings=options.settings,
        host=host,
        port=options.port,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        model=options.model,
        conductor=conductor,
        cpus=cpus,
        env=environment,
        own_store=False,
        progress=True,
    )
    return serve_until_interrupted(server)


@stop.command(epilog="Example: podium stop")
def stop_servers() -> int:
    """Stop every server of this checkout, and the processes that crashed servers left running."""
    stop_on_signals()
    return stop_everything()
