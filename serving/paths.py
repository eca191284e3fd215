"""Paths in settings: from the working folder, or from the checkout."""

from pathlib import Path

ROOT = Path(__file__).parent.parent


def resolve_path(path: Path) -> Path:
    """`path` from the working folder; from the checkout's root where it is not there, because Serve works
    anywhere.
    """
    return path if path.exists() or path.is_absolute() else ROOT / path
