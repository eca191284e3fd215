"""`podium doctor`: print one line per check, with a remedy for each problem. It changes, starts and stops
nothing.

A check's module is imported when the check runs, so that a missing package becomes a finding.
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
"""Check to its function. These checks take a `ServerPlace`."""
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
"""Checks that take a `ServerCase`."""
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
    "requests": "cluster.cost:unknown_workers",
}
"""Checks that take `ClusterFiles`. Each returns a list of findings."""
MARKS = {"ok": ("ok", "32"), "warning": ("warning", "33"), "wrong": ("WRONG", "31")}
EXIT_CODES = (
    "Exit code: 0 if nothing is wrong (warnings are allowed), 1 if something is wrong, 2 for a usage error."
)


def main(arguments: Sequence[str] | None = None, verb: str = "doctor") -> int:
    """Run the command line. `verb` is its name in the help."""
    parser = argparse.ArgumentParser(
        prog=f"podium {verb}",
        description="Find problems of this machine, of settings, of a cluster's files or of a running server, "
        "and suggest fixes. Changes nothing and calls no provider.",
        epilog=f"{EXIT_CODES} Example: podium {verb} --settings cluster/api.yaml",
    )
    parser.add_argument("--settings", type=Path, metavar="FILE", help="settings to check (default: cluster/local.yaml; with --cluster cluster/gpu.yaml)")  # fmt: skip
    parser.add_argument("--port", type=port, default=8000, help="port the server is to use (%(default)s)")
    parser.add_argument(
        "--url",
        type=url_option,
        help="check this running server instead; the key is read from PODIUM_API_KEY",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line: check, level, said, remedy, and file and field of a faulty file")  # fmt: skip
    parser.add_argument("--skip", action="append", default=[], choices=sorted({*OF_THE_MACHINE, *OF_THE_SETTINGS, *OF_A_CLUSTER}), metavar="CHECK", help="skip this check; repeatable")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="print only problems")
    cluster = parser.add_argument_group("a cluster", "check that settings, Serve config and machines agree, and estimate the cost; reads files only")  # fmt: skip
    cluster.add_argument("--cluster", type=Path, metavar="FILE", help="check this cluster instead: `ray up`'s YAML, or a RayService")  # fmt: skip
    cluster.add_argument("--serve", type=Path, metavar="FILE", default=ROOT / "cluster/gpu.serve.yaml", help="the Serve config, or a RayService (cluster/gpu.serve.yaml)")  # fmt: skip
    cluster.add_argument("--prices", type=Path, metavar="FILE", default=ROOT / "cluster/prices.yaml", help="prices of machines and tokens per request (cluster/prices.yaml)")  # fmt: skip
    cluster.add_argument("--mix", default="chat=0.7,ultra=0.3", help="shares of the kinds of requests (%(default)s)")  # fmt: skip
    cluster.add_argument(
        "--rps", type=exact_rate, help="requests per second, to compute the machines' cost per request"
    )
    options = parser.parse_args(arguments)
    if options.cluster:
        findings = show_cluster(options)
    elif options.url:
        findings = list(examine_server(options.url).items())
    else:
        settings = options.settings or Path("cluster/local.yaml")
        findings = list(examine_machine(settings, options.port, options.skip).items())
    show(findings, as_json=options.json, quiet=options.quiet)
    return int(any(each.level == "wrong" for _, each in findings))


def check(arguments: Sequence[str] | None = None) -> int:
    """`podium check`: check a cluster, by default the one in `ray_cluster.yaml`."""
    rest = sys.argv[1:] if arguments is None else arguments
    return main(["--cluster", str(ROOT / "ray_cluster.yaml"), *rest], verb="check")


def show_cluster(options: argparse.Namespace) -> list[tuple[str, Finding]]:
    """Print the tables of a cluster unless `--json` or `--quiet` is set. Return the findings."""
    from podium.doctor.cluster import cost
    from podium.doctor.cluster.files import read_files
    from podium.doctor.cluster.reading import CheckError
    from podium.doctor.cluster.tables import show_tables

    settings = options.settings or ROOT / "cluster/gpu.yaml"
    try:
        files = read_files(*map(_short, (settings, options.serve, options.cluster, options.prices)))
        mix = cost.shares(options.mix, files.prices.requests)
    except CheckError as error:
        return [("files", wrong(str(error), "Correct it. The files in cluster/ are working examples."))]
    if not (options.json or options.quiet):
        show_tables(files, mix, options.rps)
    findings = examine_cluster(files, options.skip)
    return findings or [("cluster", ok("Settings, Serve config and machines agree."))]


def examine_cluster(files: ClusterFiles, skip: Sequence[str] = ()) -> list[tuple[str, Finding]]:
    """Run every cluster check that is not in `skip`. Return the findings, the worst first."""
    checks = {name: _load(target) for name, target in OF_A_CLUSTER.items() if name not in skip}
    findings = [(name, finding) for name, check in checks.items() for finding in check(files)]
    return sorted(findings, key=lambda pair: pair[1].level != "wrong")


def _short(path: Path) -> Path:
    """Return `path` relative to the working directory if it is inside it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def examine_server(url: str) -> dict[str, Finding]:
    """Check a running server. Return the findings by check."""
    from podium.client import ClientError, find_key
    from podium.doctor.server import check_server

    try:
        key = find_key()
    except ClientError as error:
        return {"key": wrong(str(error), "Copy it again from the output of `podium keys create`.")}
    return check_server(url, key)


def examine_machine(settings: Path, port: int, skip: Sequence[str] = ()) -> dict[str, Finding]:
    """Check this machine and the settings to serve on it. Return the findings by check.

    Args:
        settings: path of the settings file.
        port: port the server is to use.
        skip: names of checks to skip.
    """
    place = ServerPlace(settings, port, os.environ)
    findings = {
        name: make(name, target, place) for name, target in OF_THE_MACHINE.items() if name not in skip
    }
    try:
        case, findings["settings"] = read_case(place)
    except ImportError as error:
        case, findings["settings"] = None, _cannot_look(error)
    if case is not None:
        findings |= {
            name: make(name, target, case) for name, target in OF_THE_SETTINGS.items() if name not in skip
        }
    return findings


def read_case(place: ServerPlace) -> tuple[ServerCase | None, Finding]:
    """Load the settings. The case is None if they cannot be used."""
    from serving import resolve_path
    from serving.settings.overrides import settings_to_serve
    from serving.settings.settings import SettingsError

    try:
        settings = settings_to_serve(resolve_path(place.path))
    except SettingsError as error:
        remedy = f"Correct {place.path}. docs/settings.md lists every setting; cluster/*.yaml are working examples."
        return None, wrong(f"{error.message} {error.detail}".strip(), remedy)
    case = ServerCase(place.path, place.port, place.environment, settings)
    return case, ok(f"{place.path}: {len(settings.workers)} workers, {len(settings.models)} models, {len(settings.workflows)} workflows.")  # fmt: skip


def make(name: str, target: str, place: ServerPlace) -> Finding:
    """Run a check. If it cannot run, return that as a finding."""
    try:
        return _load(target)(place)
    except ImportError as error:
        return _cannot_look(error)
    except OSError as error:
        return wrong(
            f"This check failed: {error}.",
            f"Run `podium doctor` as the account that runs the server ({name}).",
        )


def _load(target: str) -> Callable[..., Any]:
    module, _, function = target.partition(":")
    return getattr(import_module(f"podium.doctor.{module}"), function)


def _cannot_look(error: ImportError) -> Finding:
    return wrong(f"This check failed: {error}.", "Install what is missing with `make setup`.")


def show(findings: Sequence[tuple[str, Finding]], *, as_json: bool, quiet: bool) -> None:
    """Print the findings, each problem followed by its remedy."""
    is_terminal = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for check, finding in findings:
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
