"""Python process that can import only the packages of the base stage."""

import importlib.util
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

MODELS = {"torch", "vllm", "transformers"}
BASE_ONLY = """
import os, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
sys.modules.update(dict.fromkeys(MISSING))
"""


def packages_of(*extras: str) -> set[str]:
    """Return the distribution names of Podium with these extras and of all their requirements."""
    packages: set[tuple[str, str]] = set()
    waiting = [("podium", extra) for extra in ("", *extras)]
    while waiting:
        if (each := waiting.pop()) in packages:
            continue
        packages.add(each)
        try:
            requirements = map(Requirement, requires(each[0]) or ())
        except PackageNotFoundError:  # not installed: requirements/left_out.txt
            continue
        for need in requirements:
            if need.marker is None or need.marker.evaluate({"extra": each[1]}):
                waiting += [(canonicalize_name(need.name), extra) for extra in ("", *need.extras)]
    return {name for name, _ in packages}


@cache
def missing_packages() -> list[str]:
    """Return the importable modules that the base stage does not have."""
    base = packages_of() | {"pip"}
    ray = importlib.util.find_spec("ray")
    assert ray
    assert ray.origin
    vendored = {path.name for path in (Path(ray.origin).parent / "thirdparty_files").iterdir()}
    missing = {
        module
        for module, owners in packages_distributions().items()
        if not base & {canonicalize_name(owner) for owner in owners} and module not in vendored
    }
    assert missing >= MODELS | {"pytest", "peft"}
    return sorted(missing)


def with_base_only(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` with only the packages of the base stage."""
    return subprocess.run(
        [sys.executable, "-c", f"MISSING = {missing_packages()}\n{BASE_ONLY}\n{code}"],
        capture_output=True, text=True, cwd=ROOT, timeout=100, check=False,
    )  # fmt: skip
