"""Everything that touches a network, a clock or a replica."""

from pathlib import Path

ROOT = Path(__file__).parent.parent


def resolve_path(path: Path) -> Path:
    """Resolve a relative path against the working folder or else the root of the checkout.

    The root is used if `path` does not exist in the working folder, because Ray Serve may start the process
    in any folder. An absolute path is returned unchanged.
    """
    return path if path.exists() or path.is_absolute() else ROOT / path
