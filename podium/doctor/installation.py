"""What is installed in this checkout: Python, packages, local models, the web console."""

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

LEAST_PYTHON = (3, 11)
AGAIN = "`rm -f .venv/podium-*-stamp && make setup` installs what the lock names."
SHOWN = 4


def check_python(_: ServerPlace) -> Finding:
    """This Python is one that Podium runs in, and the checkout's own."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < LEAST_PYTHON:
        return wrong(
            f"This is Python {version}.", "Podium needs 3.11 or newer: `make setup PYTHON=python3.11`."
        )
    venv = ROOT / ".venv"
    if venv.is_dir() and Path(sys.prefix).resolve() != venv.resolve():
        return warning(
            f"Python {version} of {sys.prefix} runs, not the checkout's own.",
            "Use .venv/bin/podium, or `make serve`.",
        )
    return ok(f"Python {version}.")


def check_packages(_: ServerPlace) -> Finding:
    """Every package is there at the version of the lock."""
    installed = {_normal(each.name): each for each in metadata.distributions()}
    locked = read_versions(LOCK.read_text())
    strange = [
        f"{name} {each.version} (lock: {locked[name]})"
        for name, each in installed.items()
        if name in locked and each.version.partition("+")[0] != locked[name]
    ]
    missing = sorted(set(_needed(installed.values())) - installed.keys() - _left_out())
    faults = [
        *([f"Missing: {_few(missing)}."] if missing else []),
        *([f"Of another version than the lock's: {_few(strange)}."] if strange else []),
        *(["Set-up was interrupted."] if _was_interrupted() else []),
    ]
    return wrong(" ".join(faults), AGAIN) if faults else ok(f"{len(installed)} packages are as locked.")


def check_engine(case: ServerCase) -> Finding:
    """vLLM is installed where the settings run an engine."""
    from importlib.util import find_spec

    from cluster.local.needs import needs_of

    if not needs_of(case.settings).engine:
        return ok("The settings run no engine of their own.")
    if find_spec("vllm") and find_spec("torch"):
        return ok("vLLM is installed.")
    return wrong(
        "The settings run a vLLM engine, and vLLM is not installed.", f"make setup SETTINGS={case.path}"
    )


def check_models(case: ServerCase) -> Finding:
    """The local models of the settings are there, whole."""
    from cluster.local.local_models import LOCAL_MODELS, is_ready
    from cluster.local.model import ModelError
    from cluster.local.needs import needs_of

    names = needs_of(case.settings).models
    findings = [
        ok(f"{len(names)} local models are there." if names else "The settings serve no local model.")
    ]
    for name in names:
        folder, again = ROOT / name, f"`rm -r {name} && make setup SETTINGS={case.path}` makes it again."
        try:
            is_missing = (
                not is_ready(name) if name in LOCAL_MODELS else not (folder / "config.json").is_file()
            )
        except ModelError as error:
            findings.append(wrong(str(error), "`git checkout adapters` brings it back."))
            continue
        torn = [file.name for file in sorted(folder.glob("*.safetensors")) if not is_whole(file)]
        if torn:
            findings.append(wrong(f"{name}: {', '.join(torn)} is truncated.", again))
        elif is_missing:
            remedy = (
                f"`make setup SETTINGS={case.path}` makes it."
                if name in LOCAL_MODELS
                else f"Put the model into {folder}."
            )
            findings.append(
                wrong(f"{name} is missing, or files of it are, or it is of another adapter.", remedy)
            )
    return worst(findings)


def check_console(_: ServerPlace) -> Finding:
    """The web console is built, of this source."""
    from cluster.local.console import BUILT, has_failed, is_built

    if is_built():
        return ok("The web console is built.")
    state = (
        "could not be built (build/console.log)"
        if has_failed()
        else "is of an older source"
        if BUILT.exists()
        else "is not built"
    )
    return warning(f"The web console {state}; everything else works.", "`make console` builds it.")


def is_whole(file: Path) -> bool:
    """Whether a safetensors file is as long as its head says."""
    try:
        with file.open("rb") as opened:
            length = struct.unpack("<Q", opened.read(8))[0]
            tensors: dict[str, dict[str, list[int]]] = json.loads(opened.read(length))
    except (OSError, ValueError, struct.error):
        return False
    ends = [tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"]
    return file.stat().st_size == 8 + length + max(ends, default=0)


def read_versions(lock: str) -> Mapping[str, str]:
    """The version of each package in a lock."""
    return {
        _normal(name): version for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", lock, re.MULTILINE)
    }


def _needed(installed: Iterable[metadata.Distribution]) -> Iterable[str]:
    """What each installed package needs on this machine, whatever its extras."""
    from packaging.requirements import InvalidRequirement, Requirement

    for each in installed:
        for text in each.requires or ():
            try:
                needed = Requirement(text)
            except InvalidRequirement:  # of packages of long ago
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
