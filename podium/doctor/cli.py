"""`podium doctor`: print one line per check, with a remedy for each problem. It changes, starts and stops
nothing.

A check's module is imported when the check runs, so that a missing package becomes a finding.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from podium.command_line.options import option, parse_exact_rate, parse_port, parse_url
from podium.command_line.program import Program
from podium.command_line.terminal import inert, inert_json
from podium.doctor.finding import Finding, ServerCase, ServerPlace, ok, wrong
from serving import ROOT

if TYPE_CHECKING:
    from podium.doctor.cluster.files import ClusterFiles

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
"""Function of each check that takes a `ServerPlace`."""
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
"""Function of each check that takes a `ServerCase`."""
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
"""Function of each check that takes `ClusterFiles` and returns a list of findings."""
MARKS = {"ok": ("ok", "32"), "warning": ("warning", "33"), "wrong": ("WRONG", "31")}
CHECKS = sorted({*OF_THE_MACHINE, *OF_THE_SETTINGS, *OF_A_CLUSTER})
EXIT_CODES = (
    "Exit code: 0 if nothing is wrong (warnings are allowed), 1 if something is wrong, 2 for a usage error."
)
main, check = Program("podium doctor"), Program("podium check")


def list_checks() -> list[str]:
    return CHECKS


@option
def check_name(text: str) -> str:
    """Parse the name of a check, and reject an unknown one."""
    if text not in CHECKS:
        raise ValueError(f"unknown check {text!r}. Choose from {', '.join(CHECKS)}")
    return text


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """Command-line options: what to check, and how to print the findings."""

    settings: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="settings to check",
            show_default="cluster/local.yaml; with --cluster cluster/gpu.yaml",
        ),
    ] = None
    port: Annotated[int, Option(parser=parse_port, help="port that the server will use")] = 8000
    url: Annotated[
        str | None,
        Option(
            parser=parse_url, help="check this running server instead; the key is read from PODIUM_API_KEY"
        ),
    ] = None
    as_json: Annotated[
        bool,
        Option(
            "--json",
            help="print one JSON object per line, with check, level, said and remedy, and with file and field if a file is wrong",
        ),
    ] = False
    skip: Annotated[
        list[str] | None,
        Option(
            parser=check_name, autocompletion=list_checks, metavar="CHECK", help="skip this check; repeatable"
        ),
    ] = None
    quiet: Annotated[bool, Option("--quiet", help="print only warnings and errors")] = False


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Command-line options for checks of a cluster: its files, and the mix and rate of requests."""

    serve: Annotated[
        Path,
        Option(
            metavar="FILE",
            help="with --cluster: the Serve config, or a RayService manifest",
            show_default="cluster/gpu.serve.yaml",
        ),
    ] = ROOT / "cluster/gpu.serve.yaml"
    prices: Annotated[
        Path,
        Option(
            metavar="FILE",
            help="with --cluster: file with the prices of machines and the tokens per request",
            show_default="cluster/prices.yaml",
        ),
    ] = ROOT / "cluster/prices.yaml"
    mix: Annotated[str, Option(help="with --cluster: share of each kind of request")] = "chat=0.7,ultra=0.3"
    rps: Annotated[
        Decimal | None,
        Option(
            parser=parse_exact_rate,
            help="with --cluster: requests per second, to compute the machines' cost per request",
        ),
    ] = None


ClusterFile = Annotated[
    Path | None,
    Option(
        "--cluster",
        metavar="FILE",
        help="check that this cluster file (the YAML of `ray up`, or a RayService manifest) agrees with the settings and the Serve config, and estimate "
        "the cost; only reads files",
    ),
]


@main.command(epilog=f"{EXIT_CODES}\n\nExample: podium doctor --settings cluster/api.yaml")
def examine(options: DoctorOptions, cluster: ClusterFile = None, *, in_cluster: ClusterOptions) -> int:
    """Find problems with this machine, the settings, a cluster's files or a running server, and suggest fixes.
    Changes nothing and calls no provider.
    """
    if cluster:
        findings = show_cluster(options, in_cluster, cluster)
    elif options.url:
        findings = list(examine_server(options.url).items())
    else:
        settings = options.settings or Path("cluster/local.yaml")
        findings = list(examine_machine(settings, options.port, options.skip or ()).items())
    show(findings, as_json=options.as_json, quiet=options.quiet)
    return int(any(each.level == "wrong" for _, each in findings))


@check.command(epilog=f"{EXIT_CODES}\n\nExample: podium check --settings cluster/api.yaml")
def examine_shipped_cluster(
    options: DoctorOptions, cluster: ClusterFile = ROOT / "ray_cluster.yaml", *, in_cluster: ClusterOptions
) -> int:
    """Check that a cluster's settings, Serve config and machines agree, and estimate the cost, as `podium doctor
    --cluster` does. Changes nothing and calls no provider.
    """
    return examine(options, cluster, in_cluster=in_cluster)


def show_cluster(
    options: DoctorOptions, in_cluster: ClusterOptions, cluster: Path
) -> list[tuple[str, Finding]]:
    """Check a cluster and return the findings. Print its tables, unless `--json` or `--quiet` is set."""
    from podium.doctor.cluster import cost
    from podium.doctor.cluster.files import read_files
    from podium.doctor.cluster.reading import CheckError
    from podium.doctor.cluster.tables import show_tables

    settings = options.settings or ROOT / "cluster/gpu.yaml"
    try:
        files = read_files(*map(_short, (settings, in_cluster.serve, cluster, in_cluster.prices)))
        mix = cost.shares(in_cluster.mix, files.prices.requests)
    except CheckError as error:
        return [("files", wrong(str(error), "Correct the file. The files in cluster/ are working examples."))]
    if not (options.as_json or options.quiet):
        show_tables(files, mix, in_cluster.rps)
    findings = examine_cluster(files, options.skip or ())
    return findings or [("cluster", ok("Settings, Serve config and machines agree."))]


def examine_cluster(files: ClusterFiles, skip: Sequence[str] = ()) -> list[tuple[str, Finding]]:
    """Run all cluster checks except those in `skip`. Return the findings, `wrong` ones first."""
    checks = {name: _load(target) for name, target in OF_A_CLUSTER.items() if name not in skip}
    findings = [(name, finding) for name, check in checks.items() for finding in check(files)]
    return sorted(findings, key=lambda pair: pair[1].level != "wrong")


def _short(path: Path) -> Path:
    """Return `path` relative to the working directory if it is inside it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def examine_server(url: str) -> dict[str, Finding]:
    """Run all checks of a running server. Return the findings by check."""
    from podium.client import ClientError, find_key
    from podium.doctor.server import check_server

    try:
        key = find_key()
    except ClientError as error:
        return {"key": wrong(str(error), "Copy it again from the output of `podium keys create`.")}
    return check_server(url, key)


def examine_machine(settings: Path, port: int, skip: Sequence[str] = ()) -> dict[str, Finding]:
    """Run all checks of this machine and of the settings to serve on `port`, except those in `skip`."""
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
    """Load the settings. Return the input for further checks, or None if invalid, and the finding."""
    from serving import resolve_path
    from serving.settings.overrides import settings_to_serve
    from serving.settings.settings import SettingsError

    try:
        settings = settings_to_serve(resolve_path(place.path))
    except SettingsError as error:
        remedy = f"Correct {place.path}. docs/settings.md lists every setting; cluster/*.yaml are working examples."
        return None, wrong(f"{error.message} {error.detail}".strip(), remedy)
    case = ServerCase(place.path, place.port, place.environment, settings)
    return case, ok(f"{place.path} is valid: {len(settings.workers)} workers, {len(settings.models)} models, {len(settings.workflows)} workflows.")  # fmt: skip


def make(name: str, target: str, place: ServerPlace) -> Finding:
    """Run a check. If it raises an error, return a finding that describes the error."""
    try:
        return _load(target)(place)
    except ImportError as error:
        return _cannot_look(error)
    except OSError as error:
        return wrong(
            f"This check cannot run: {error}.",
            f"Run `podium doctor` as the account that runs the server. To skip this check, pass --skip {name}.",
        )


def _load(target: str) -> Callable[..., Any]:
    module, _, function = target.partition(":")
    return getattr(import_module(f"podium.doctor.{module}"), function)


def _cannot_look(error: ImportError) -> Finding:
    return wrong(f"This check cannot run: {error}.", "Install the missing package with `make setup`.")


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
