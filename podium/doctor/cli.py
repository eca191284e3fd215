"""`podium doctor`: every check, one line each, and what to do. Reads and asks; changes, starts and ends nothing.

A check's module is imported when the check is made: the doctor says that a package is missing rather than
missing it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from podium.doctor.finding import Case, Finding, Place, ok, wrong
from program.inert import inert, inert_json
from program.options import port
from program.options import url as url_option

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
"""Check -> where it is; these look at a `Place`."""
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
"""And these at a `Case`."""
MARKS = {"ok": ("ok", "32"), "warning": ("warning", "33"), "wrong": ("WRONG", "31")}
EXIT_CODES = (
    "Exit code: 0 where nothing is wrong (warnings may be), 1 where something is, 2 for a wrong command line."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="podium doctor",
        description="Finds what is wrong with this machine, with settings, or with a running server, and says what to do. "
        "Changes nothing, and asks no provider.",
        epilog=f"{EXIT_CODES} Example: podium doctor --settings cluster/api.yaml",
    )
    parser.add_argument("--settings", type=Path, default=Path("cluster/local.yaml"), metavar="FILE", help="what is to be served (%(default)s)")  # fmt: skip
    parser.add_argument("--port", type=port, default=8000, help="where it is to answer (%(default)s)")
    parser.add_argument(
        "--url", type=url_option, help="look at this running server instead; the key is in PODIUM_API_KEY"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a line: check, level, said, remedy"
    )
    parser.add_argument("--skip", action="append", default=[], choices=[*OF_THE_MACHINE, *OF_THE_SETTINGS], metavar="CHECK", help="leave a check out; may be given again")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="only what is to be done")
    options = parser.parse_args(arguments)
    if options.url:
        found = examine_server(options.url)
    else:
        found = examine_machine(options.settings, options.port, options.skip)
    show(found, as_json=options.json, quiet=options.quiet)
    return int(any(each.level == "wrong" for each in found.values()))


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
    place = Place(settings, port, os.environ)
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


def read_case(place: Place) -> tuple[Case | None, Finding]:
    """The settings, read; None where they cannot be used."""
    from serving.paths import resolve_path
    from serving.settings.overrides import settings_to_serve
    from serving.settings.settings import SettingsError

    try:
        settings = settings_to_serve(resolve_path(place.path))
    except SettingsError as error:
        remedy = f"Correct {place.path}; docs/settings.md has every setting, cluster/*.yaml are examples that work."
        return None, wrong(f"{error.message} {error.detail}".strip(), remedy)
    case = Case(place.path, place.port, place.environment, settings)
    return case, ok(f"{place.path}: {len(settings.workers)} workers, {len(settings.models)} models, {len(settings.workflows)} workflows.")  # fmt: skip


def make(name: str, target: str, place: Place) -> Finding:
    """Make a check; that it cannot be made is a finding too."""
    module, _, function = target.partition(":")
    try:
        return getattr(import_module(f"podium.doctor.{module}"), function)(place)
    except ImportError as error:
        return _cannot_look(error)
    except OSError as error:
        return wrong(
            f"This cannot be looked at: {error}.",
            f"Run it as the account that serves: `podium doctor` ({name}).",
        )


def _cannot_look(error: ImportError) -> Finding:
    return wrong(f"This cannot be looked at: {error}.", "`make setup` installs what is missing.")


def show(found: dict[str, Finding], *, as_json: bool, quiet: bool) -> None:
    """Print what was found, and below each fault what to do."""
    is_terminal = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for name, finding in found.items():
        if as_json:
            print(inert_json({"check": name, **asdict(finding)}))
            continue
        if quiet and finding.level == "ok":
            continue
        word, colour = MARKS[finding.level]
        mark = f"\x1b[{colour}m{word:8}\x1b[0m" if is_terminal else f"{word:8}"
        print(f"{mark}{name:10} {inert(finding.said)}")
        if finding.remedy:
            print(f"{'':19}→ {inert(finding.remedy)}")
