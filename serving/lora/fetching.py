"""Download adapters to a local folder, each only once, and verify their content against their names.

`pyarrow.fs` reads local folders, `s3://`, `gs://` and `abfss://`. It uses the credentials of the machine: the
instance role, or the provider's usual environment variables, which must be set for Ray. This module does not
depend on vLLM or Ray.
"""

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from serving import resolve_path
from serving.lora.adapters import FILES, WEIGHTS, AdapterError, name_of, put, verify

BLOCK_BYTES = 1 << 22


def cache() -> Path:
    """Return the folder for downloaded adapters: `podium/adapters` in `$XDG_CACHE_HOME` or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podium" / "adapters"


def fetch(address: str, into: Path) -> Path:
    """Download the adapter at `address`, unless it is in `into`, and return its local folder. Raise
    AdapterError if it cannot be read or does not match its name.

    Local ones are copied too, because they may change after the check. Several replicas may call this at
    once. Adapters stay, because an engine reads them again after eviction.
    """
    name = name_of(address)
    target = into / name
    if _holds(target, name):
        return target
    try:
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into, prefix=".fetching-") as part:
            folder = Path(part) / name
            folder.mkdir()
            _copy(address, folder)
            verify(folder, name)
            shutil.rmtree(target, ignore_errors=True)  # an existing folder does not match its name
            put(folder, target)
    except OSError as exc:
        full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "the disk is full" if full else exc.strerror or exc
        raise AdapterError(
            f"The adapter {address} cannot be stored in {into}: {why}. Free disk space, or set XDG_CACHE_HOME in the "
            "worker's `scale.env` to another folder."
        ) from exc
    return target


def _holds(folder: Path, name: str) -> bool:
    try:
        verify(folder, name)
    except AdapterError:
        return False
    return True


def _copy(address: str, folder: Path) -> None:
    """Copy the adapter's files in blocks. Raise AdapterError if one cannot be read."""
    filesystem, path = _open_filesystem(address)
    for name in FILES:
        try:
            source = filesystem.open_input_stream(f"{path}/{name}")
        except FileNotFoundError as exc:
            raise AdapterError(f"The adapter {address} does not exist, or has no {name}.") from exc
        except (OSError, ValueError) as exc:
            raise AdapterError(f"The adapter {address} cannot be read: {exc}.") from exc
        with source, (folder / name).open("wb") as target:
            while block := _read(source, address):
                target.write(block)
    if not (folder / WEIGHTS).stat().st_size:
        raise AdapterError(f"The file {WEIGHTS} of the adapter {address} is empty.")


def _read(source: Any, address: str) -> bytes:
    try:
        return source.read(BLOCK_BYTES)
    except (OSError, ValueError) as exc:
        raise AdapterError(f"Reading the adapter {address} failed: {exc}.") from exc


def _open_filesystem(address: str) -> tuple[Any, str]:
    from pyarrow import fs  # pyright: ignore[reportMissingTypeStubs]

    arrow: Any = fs
    if "://" not in address:
        return arrow.LocalFileSystem(), str(resolve_path(Path(address).expanduser()).absolute())
    try:
        return arrow.FileSystem.from_uri(address)
    except (OSError, ValueError) as exc:  # ArrowInvalid is a ValueError
        raise AdapterError(
            f"The adapter address {address} cannot be opened: {exc}. Use a local folder, or an address with s3://, gs:// or abfss://."
        ) from exc
