"""A Python that has no packages but those of requirements/base.lock, as far as imports can tell."""

import subprocess
import sys
from importlib.metadata import packages_distributions

from cluster.local.venv import BASE_LOCK, locked_names, normal, site_packages
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


def with_base_only(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` as if nothing were installed but what requirements/base.lock names."""
    base = {*locked_names(BASE_LOCK), "podium", "pip"}
    vendored = {path.name for path in (site_packages() / "ray" / "thirdparty_files").iterdir()}
    missing = {
        module
        for module, owners in packages_distributions().items()
        if not base & {normal(owner) for owner in owners} and module not in vendored
    }
    assert missing >= MODELS | {"pytest", "peft"}
    return subprocess.run(
        [sys.executable, "-c", f"MISSING = {sorted(missing)}\n{BASE_ONLY}\n{code}"],
        capture_output=True, text=True, cwd=ROOT, timeout=100, check=False,
    )  # fmt: skip
