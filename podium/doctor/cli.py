"""`podium doctor`: print one line for each check, and what to do. It changes, starts and ends nothing.

A check's module is imported when the check is made, so that a missing package becomes a finding.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from podium.doctor.finding import Finding, ServerCase, ServerPlace, ok, wrong
from program.inert import inert, inert_json
from program.options import exact_rate, port
from program.options import url as url_option

if TYPE_CHECKING:
    from podium.doctor.cluster.files import ClusterFiles

ROOT = Path(__file__).resolve().parents[2]
OF_THE_MACHINE = {
    "python": "installation:check_python",
    "packages": "installation:check_packages",
    "console": "installation:check_console",
    "files": "machine:check_open_files",
    "port": "processes:check_port",
    "processes": "processes:check_left_processes",
    "session": "processes:check_left_session",
    "haproxy": "processes:check_haproxy",
}
"""Check -> where it is; these look at a `ServerPlace`."""
OF_THE_SETTINGS = {
    "keys": "configuration:check_keys",
    "workers": "configuration:check_workers",
    "effect": "configuration:check_effect",
    "store": "configuration:check_store",
    "clock": "configuration:check_clock",
    "engine": "installation:check_engine",
    "models": "installation:check_models",
    "disk": "machine:check_disk",
    "memory": "machine:check_memory",
    "gpu": "machine:check_gpus",
}
"""And these at a `ServerCase`."""
OF_A_CLUSTER = {
    "builder": "cluster.code:builder",
    "user_config": "cluster.code:user_configs",
    "policy": "cluster.scaling:policies",
    "replicas": "cluster.scaling:counts",
    "scaling": "cluster.scaling:both",
    "ports": "cluster.hardware:ports",
    "images": "cluster.hardware:images",
    "gpus": "cluster.hardware:gpus",
    "names": "cluster.placing:names",
    "bundles": "cluster.placing:gpus",
    "nodes": "cluster.placing:nodes",
    "fit": "cluster.memory:memory",
    "secrets": "cluster.running:keys",
    "database": "cluster.running:store",
    "prices": "cluster.running:prices",
    "draining": "cluster.running:drains",
    "spot": "cluster.running:spot",
    "machines": "cluster.cost:unknown_prices",
    "requests": "cluster.cost:strangers",
}
"""And these at `ClusterFiles`. Each returns a list of findings."""
MARKS = {"ok": ("ok", "32"), "warning": ("warning", "33"), "wrong": ("WRONG", "31")}
EXIT_CODES = (
    "Exit code: 0 where nothing is wrong (warnings may be), 1 where something is, 2 for a wrong command line."
)


def main(arguments: Sequence[str] | None = None, verb: str = "doctor") -> int:
    """Command line. `verb` is what the help calls it."""
    parser = argparse.ArgumentParser(
        prog=f"podium {verb}",
        description="Finds what is wrong with this machine, with settings, with a cluster's files, or with a running server, "
        "and says what to do. Changes nothing, and asks no provider.",
        epilog=f"{EXIT_CODES} Example: podium {verb} --settings cluster/api.yaml",
    )
    parser.add_argument("--settings", type=Path, metavar="FILE", help="what is to be served (cluster/local.yaml; with --cluster cluster/gpu.yaml)")  # fmt: skip
    parser.add_argument("--port", type=port, default=8000, help="where it is to answer (%(default)s)")
    parser.add_argument(
        "--url", type=url_option, help="look at this running server instead; the key is in PODIUM_API_KEY"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line: check, level, said, remedy, and file and field where a file is at fault")  # fmt: skip
    parser.add_argument("--skip", action="append", default=[], choices=sorted({*OF_THE_MACHINE, *OF_THE_SETTINGS, *OF_A_CLUSTER}), metavar="CHECK", help="leave a check out; may be given again")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="only what is to be done")
    cluster = parser.add_argument_group("a cluster", "do settings, Serve config and machines agree, and what do they cost; reads files only")  # fmt: skip
    cluster.add_argument("--cluster", type=Path, metavar="FILE", help="look at this cluster instead: `ray up`'s YAML, or a RayService")  # fmt: skip
    cluster.add_argument("--serve", type=Path, metavar="FILE", default=ROOT / "cluster/gpu.serve.yaml", help="the Serve config, or a RayService (cluster/gpu.serve.yaml)")  # fmt: skip
    cluster.add_argument("--prices", type=Path, metavar="FILE", default=ROOT / "cluster/prices.yaml", help="prices and tokens of your own (cluster/prices.yaml)")  # fmt: skip
    cluster.add_argument("--mix", default="chat=0.7,ultra=0.3", help="shares of the kinds of requests (%(default)s)")  # fmt: skip
    cluster.add_argument("--rps", type=exact_rate, help="requests a second that share the machines")
    options = parser.parse_args(arguments)
    if options.cluster:
        found = show_cluster(options)
    elif options.url:
        found = list(examine_server(options.url).items())
    else:
        settings = options.settings or Path("cluster/local.yaml")
        found = list(examine_machine(settings, options.port, options.skip).items())
    show(found, as_json=options.json, quiet=options.quiet)
    return int(any(each.level == "wrong" for _, each in found))


def check(arguments: Sequence[str] | None = None) -> int:
    """Look at a cluster, the one that ships by default: `podium check`."""
    rest = sys.argv[1:] if arguments is None else arguments
    return main(["--cluster", str(ROOT / "ray_cluster.yaml"), *rest], verb="check")


def show_cluster(options: argparse.Namespace) -> list[tuple[str, Finding]]:
    """Print the tables of a cluster, unless only findings are asked for. Return the findings."""
    from podium.doctor.cluster import cost
    from podium.doctor.cluster.files import read_files
    from podium.doctor.cluster.reading import CheckError
    from podium.doctor.cluster.tables import show_tables

    settings = options.settings or ROOT / "cluster/gpu.yaml"
    try:
        files = read_files(*map(_short, (settings, options.serve, options.cluster, options.prices)))
        mix = cost.shares(options.mix, files.prices.requests)
    except CheckError as error:
        return [("files", wrong(str(error), "Correct it; the files in cluster/ are examples that work."))]
    if not (options.json or options.quiet):
        show_tables(files, mix, options.rps)
    found = examine_cluster(files, options.skip)
    return found or [("cluster", ok("Settings, Serve config and machines agree."))]


def examine_cluster(files: ClusterFiles, skip: Sequence[str] = ()) -> list[tuple[str, Finding]]:
    """Return what every check that is not in `skip` finds about a cluster, the worst first."""
    checks = {name: _load(target) for name, target in OF_A_CLUSTER.items() if name not in skip}
    found = [(name, finding) for name, check in checks.items() for finding in check(files)]
    return sorted(found, key=lambda pair: pair[1].level != "wrong")


def _short(path: Path) -> Path:
    """Return `path` as it is written in the repository, if the command is run there."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def examine_server(url: str) -> dict[str, Finding]:
    """What is found about a running server."""
    from podium.client import ClientError, find_key
    from podium.doctor.server import check_server

    try:
        key = find_key()
    except ClientError as error:
        return {"key": wrong(str(error), "Copy it again, as `podium keys create` printed it.")}
    return check_server(url, key)


def examine_machine(settings: Path, port: int, skip: Sequence[str] = ()) -> dict[str, Finding]:
    """What is found about this machine, and about what is to be served on it.

    Args:
        settings: their file.
        port: that the server is to answer at.
        skip: checks that are not made.
    """
    place = ServerPlace(settings, port, os.environ)
    found = {name: make(name, target, place) for name, target in OF_THE_MACHINE.items() if name not in skip}
    try:
        case, found["settings"] = read_case(place)
    except ImportError as error:
        case, found["settings"] = None, _cannot_look(error)
    if case is not None:
        found |= {
            name: make(name, target, case) for name, target in OF_THE_SETTINGS.items() if name not in skip
        }
    return found


def read_case(place: ServerPlace) -> tuple[ServerCase | None, Finding]:
    """The settings, read; None where they cannot be used."""
    from serving.paths import resolve_path
    from serving.settings.overrides import settings_to_serve
    from serving.settings.settings import SettingsError

    try:
        settings = settings_to_serve(resolve_path(place.path))
    except SettingsError as error:
        remedy = f"Correct {place.path}; docs/settings.md has every setting, cluster/*.yaml are examples that work."
        return None, wrong(f"{error.message} {error.detail}".strip(), remedy)
    case = ServerCase(place.path, place.port, place.environment, settings)
    return case, ok(f"{place.path}: {len(settings.workers)} workers, {len(settings.models)} models, {len(settings.workflows)} workflows.")  # fmt: skip


def make(name: str, target: str, place: ServerPlace) -> Finding:
    """Make a check; that it cannot be made is a finding too."""
    try:
        return _load(target)(place)
    except ImportError as error:
        return _cannot_look(error)
    except OSError as error:
        return wrong(
            f"This cannot be looked at: {error}.",
            f"Run it as the account that serves: `podium doctor` ({name}).",
        )


def _load(target: str) -> Callable[..., Any]:
    module, _, function = target.partition(":")
    return getattr(import_module(f"podium.doctor.{module}"), function)


def _cannot_look(error: ImportError) -> Finding:
    return wrong(f"This cannot be looked at: {error}.", "`make setup` installs what is missing.")


def show(found: Sequence[tuple[str, Finding]], *, as_json: bool, quiet: bool) -> None:
    """Print what was found, and below each fault what to do."""
    is_terminal = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for check, finding in found:
        if as_json:
            fields = {name: value for name, value in asdict(finding).items() if value or name == "remedy"}
            print(inert_json({"check": check} | fields))
            continue
        if quiet and finding.level == "ok":
            continue
        word, colour = MARKS[finding.level]
        mark = f"\x1b[{colour}m{word:8}\x1b[0m" if is_terminal else f"{word:8}"
        where = f"{finding.file}: {finding.field} " if finding.file else ""
        print(f"{mark}{check:10} {inert(where + finding.said)}")
        if finding.remedy:
            print(f"{'':19}→ {inert(finding.remedy)}")
