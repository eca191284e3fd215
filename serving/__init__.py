"""Everything that touches a network, a clock or a replica."""

from pathlib import Path

ROOT = Path(__file__).parent.parent


def resolve_path(path: Path) -> Path:
    """Return `path` if it is absolute or exists in the working folder, and otherwise the path below the checkout's root.

    Ray Serve may run the process in any folder.
    """
    return path if path.exists() or path.is_absolute() else ROOT / path
