"""Check the installation of this checkout: Python, packages, local models and the web console."""

from __future__ import annotations

import importlib.metadata as metadata
import json
import re
import struct
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from cluster.local.uv import LEFT_OUT, LOCK, ROOT
from podium.doctor.finding import Finding, ServerCase, ServerPlace, ok, warning, worst, wrong
from serving import DATA, IS_CHECKOUT, resolve_path

LEAST_PYTHON = (3, 11)
AGAIN = (
    "Install the locked versions with `rm -f .venv/podium-*-stamp && make setup`."
    if IS_CHECKOUT
    else "Install the wheel of Podium again with pip."
)
SHOWN = 4


def check_python(_: ServerPlace) -> Finding:
    """Check that Python has a supported version and is the one in the checkout's `.venv`."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < LEAST_PYTHON:
        return wrong(
            f"Python {version} is too old.",
            "Podium needs Python 3.11 or newer. Run `make setup PYTHON=python3.11`.",
        )
    venv = ROOT / ".venv"
    if venv.is_dir() and Path(sys.prefix).resolve() != venv.resolve():
        return warning(
            f"This command runs with the Python {version} of {sys.prefix}, not with that of the checkout.",
            "Run .venv/bin/podium, or use `make serve`.",
        )
    return ok(f"Python {version} is supported.")


def check_packages(_: ServerPlace) -> Finding:
    """Check that all packages are installed in their locked versions."""
    installed = {_normal(each.name): each for each in metadata.distributions()}
    if not IS_CHECKOUT:  # without a lock, Podium's own requirements are all that is known
        missing = sorted(set(_needed([metadata.distribution("podium")])) - installed.keys())
        return (
            wrong(f"Missing packages: {_few(missing)}.", AGAIN)
            if missing
            else ok(f"{len(installed)} packages are installed.")
        )
    locked = read_versions(LOCK.read_text())
    mismatched = [
        f"{name} {each.version} (lock: {locked[name]})"
        for name, each in installed.items()
        if name in locked and each.version.partition("+")[0] != locked[name]
    ]
    missing = sorted(set(_needed(installed.values())) - installed.keys() - _left_out())
    faults = [
        *([f"Missing packages: {_few(missing)}."] if missing else []),
        *([f"Packages that differ from the lock file: {_few(mismatched)}."] if mismatched else []),
        *(["The set-up was interrupted."] if _was_interrupted() else []),
    ]
    return wrong(" ".join(faults), AGAIN) if faults else ok(f"{len(installed)} packages match the lock file.")


def check_engine(case: ServerCase) -> Finding:
    """Check that vLLM is installed if the settings run an engine."""
    from importlib.util import find_spec

    from cluster.local.needs import needs_of

    if not needs_of(case.settings).engine:
        return ok("The settings run no local engine.")
    if find_spec("vllm") and find_spec("torch"):
        return ok("vLLM is installed.")
    return wrong(
        "The settings run a vLLM engine, but vLLM is not installed.",
        f"Run `make setup SETTINGS={case.path}`.",
    )


def check_models(case: ServerCase) -> Finding:
    """Check that the local models that the settings use exist and are complete."""
    from cluster.local.local_models import LOCAL_MODELS, is_ready
    from cluster.local.model import ModelError
    from cluster.local.needs import needs_of

    names = needs_of(case.settings).models
    findings = [ok(f"Local models installed: {len(names)}." if names else "The settings use no local model.")]
    for name in names:
        there = resolve_path(Path(name))  # an image has them in its working folder
        folder = there if there.is_dir() else DATA / name
        again = f"Rebuild it with `rm -r {name} && make setup SETTINGS={case.path}`."
        try:
            is_missing = (
                not is_ready(name, folder) if name in LOCAL_MODELS else not (folder / "config.json").is_file()
            )
        except ModelError as error:
            findings.append(wrong(str(error), "Restore it with `git checkout adapters`."))
            continue
        truncated = [file.name for file in sorted(folder.glob("*.safetensors")) if not is_whole(file)]
        if truncated:
            findings.append(wrong(f"Files of {name} are truncated: {', '.join(truncated)}.", again))
        elif is_missing:
            remedy = (
                f"Build it with `make setup SETTINGS={case.path}`."
                if name in LOCAL_MODELS
                else f"Put the model in {folder}."
            )
            findings.append(
                wrong(f"{name} is missing or incomplete, or was built with another adapter.", remedy)
            )
    return worst(findings)


def check_console(_: ServerPlace) -> Finding:
    """Check that the web console is built from the current source."""
    from cluster.local.console import BUILT, has_failed, is_built

    if not IS_CHECKOUT or is_built():
        return ok("The web console is built.")
    state = (
        "could not be built (see build/console.log)"
        if has_failed()
        else "is built from older source"
        if BUILT.exists()
        else "is not built"
    )
    return warning(f"The web console {state}. Everything else works.", "Build it with `make console`.")


def is_whole(file: Path) -> bool:
    """Return whether a safetensors file is complete, by the length that its header gives."""
    try:
        with file.open("rb") as opened:
            length = struct.unpack("<Q", opened.read(8))[0]
            tensors: dict[str, dict[str, list[int]]] = json.loads(opened.read(length))
    except (OSError, ValueError, struct.error):
        return False
    ends = [tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"]
    return file.stat().st_size == 8 + length + max(ends, default=0)


def read_versions(lock: str) -> Mapping[str, str]:
    """Return the version of each package in a lock file."""
    return {
        _normal(name): version for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", lock, re.MULTILINE)
    }


def _needed(installed: Iterable[metadata.Distribution]) -> Iterable[str]:
    """Yield the names of the packages that the installed packages require on this machine, without extras."""
    from packaging.requirements import InvalidRequirement, Requirement

    for each in installed:
        for text in each.requires or ():
            try:
                needed = Requirement(text)
            except InvalidRequirement:  # some old packages declare requirements that do not follow PEP 508
                continue
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                yield _normal(needed.name)


def _left_out() -> set[str]:
    lines = LEFT_OUT.read_text().splitlines()
    return {_normal(line.partition("#")[0].strip()) for line in lines}


def _was_interrupted() -> bool:
    from cluster.local.install import was_interrupted

    return was_interrupted()


def _few(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
