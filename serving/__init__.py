"""Everything that touches a network, a clock or a replica."""

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""Folder of Podium's packages: the checkout, or `site-packages` if Podium was installed from a wheel."""
IS_CHECKOUT = (ROOT / "pyproject.toml").is_file()


def user_folder(environment: Mapping[str, str]) -> Path:
    """Return the user's folder for Podium's data.

    It is `$XDG_DATA_HOME/podium`, or `~/.local/share/podium` if the variable is not set.
    """
    folder = environment.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(folder) / "podium"


DATA = ROOT if IS_CHECKOUT else user_folder(os.environ)
"""Folder in which Podium writes its logs (`build/`) and makes its local models (`models/`)."""


def resolve_path(path: Path) -> Path:
    """Resolve a relative path against the working folder, `ROOT` or `DATA`, in this order.

    The other folders are used if `path` does not exist in the working folder, because Ray Serve may start the
    process in any folder. An absolute path is returned unchanged. A path that exists nowhere is returned in
    `ROOT`.
    """
    if path.is_absolute():
        return path
    places = (path, ROOT / path, DATA / path)
    return next((each for each in places if each.exists()), ROOT / path)
