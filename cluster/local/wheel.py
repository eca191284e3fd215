"""`python -m cluster.local.wheel`: build Podium's wheel in `dist/`, for `pip install` and for the image.

The wheel contains the packages, their settings files, the built web console and the shipped adapter. So
`podium serve` works without a checkout. The same commit gives the same bytes, because the files get the time
of the commit.

This module imports only the standard library.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from cluster.local import console, uv
from cluster.local.command import SetupError, ask, run
from cluster.local.uv import LOCK, ROOT, UV

DIST = ROOT / "dist"
PACKAGES = ("podium", "conductor", "serving", "cluster", "loadtest", "training", "evaluation")
FILES = ("pyproject.toml", "LICENSE")
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "shipped")
"""Files of the shipped adapter from which the bundled conductor is made."""


def stage(folder: Path, built_console: Path = console.BUILT) -> None:
    """Copy to `folder` what the wheel is built from. `serving.IS_CHECKOUT` decides where a server looks for it.

    Args:
        folder: an existing folder.
        built_console: folder of the built web console.
    """
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy2(ROOT / name, folder)
    shutil.copytree(built_console, folder / "serving" / "console", ignore=shutil.ignore_patterns("*.sha256"))
    (shipped,) = (path.parent for path in (ROOT / "adapters").glob("*/shipped"))
    (adapter := folder / "cluster" / "adapters" / shipped.name).mkdir(parents=True)
    for name in ADAPTER_FILES:
        shutil.copy2(shipped / name, adapter)


def build(folder: Path, out: Path = DIST) -> Path:
    """Build the wheel from the staged files in `folder`, and return its path.

    Raises:
        SetupError: the wheel could not be built.
    """
    for old in out.glob("podium-*.whl"):
        old.unlink()
    environment = uv.environment()
    if committed_s := ask("git", "-C", str(ROOT), "log", "-1", "--format=%ct").strip():
        environment = {"SOURCE_DATE_EPOCH": committed_s} | environment
    options = ["--wheel", "--build-constraints", str(LOCK), "--require-hashes", "--out-dir", str(out)]
    run([str(UV), "build", *options, str(folder)], "building the wheel", environment=environment)
    (wheel,) = out.glob("podium-*.whl")
    return wheel


def main() -> int:
    """Build the wheel and return the exit code. Errors go to standard error."""
    os.umask(0o022)
    try:
        if not console.is_built():
            raise SetupError("The web console is not built. Run `make console`.")
        with TemporaryDirectory(prefix="podium-wheel-") as folder:
            stage(Path(folder))
            wheel = build(Path(folder))
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
