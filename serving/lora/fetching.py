"""From an adapter's address to a folder of this machine, fetched once, checked by its name, there whole or
not at all.

`pyarrow.fs` reads local folders, `s3://`, `gs://` and `abfss://`; its credentials are the machine's
(instance role, or the provider's usual variables in the environment of Ray). Knows neither vLLM nor Ray.
"""

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from serving.lora.adapters import FILES, WEIGHTS, AdapterError, name_of, put, verify
from serving.paths import resolve_path

BLOCK_BYTES = 1 << 22


def cache() -> Path:
    """Where this machine keeps what was fetched: `$XDG_CACHE_HOME/podium/adapters`, under `~/.cache` where
    that is not set.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podium" / "adapters"


def fetch(address: str, into: Path) -> Path:
    """The folder of the adapter at `address`, from `into` where it is there already.

    A local one is copied too: what is written over the original afterwards is not what was checked.
    Replicas of one machine may fetch at the same time. What is kept stays: a running engine reads it again
    after it has put an adapter out.

    Raises:
        AdapterError: it is not there, cannot be read or kept, or is not what its name says.
    """
    name = name_of(address)
    kept = into / name
    if _holds(kept, name):
        return kept
    try:
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into, prefix=".fetching-") as part:
            folder = Path(part) / name
            folder.mkdir()
            _copy(address, folder)
            verify(folder, name)
            shutil.rmtree(kept, ignore_errors=True)  # what was there is not what it is called
            put(folder, kept)
    except OSError as exc:
        full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "the disk is full" if full else exc.strerror or exc
        raise AdapterError(
            f"The adapter {address} cannot be kept in {into}: {why}. Make room, or name another folder in XDG_CACHE_HOME "
            "(the worker's `scale.env`)."
        ) from exc
    return kept


def _holds(folder: Path, name: str) -> bool:
    try:
        verify(folder, name)
    except AdapterError:
        return False
    return True


def _copy(address: str, folder: Path) -> None:
    """The adapter's files, a block at a time.

    Raises:
        AdapterError: one cannot be read at `address`.
        OSError: one cannot be written.
    """
    filesystem, path = _open_filesystem(address)
    for name in FILES:
        try:
            source = filesystem.open_input_stream(f"{path}/{name}")
        except FileNotFoundError as exc:
            raise AdapterError(f"The adapter {address} is not there, or has no {name}.") from exc
        except (OSError, ValueError) as exc:
            raise AdapterError(f"The adapter {address} cannot be read: {exc}.") from exc
        with source, (folder / name).open("wb") as target:
            while block := _read(source, address):
                target.write(block)
    if not (folder / WEIGHTS).stat().st_size:
        raise AdapterError(f"The adapter {address} has an empty {WEIGHTS}.")


def _read(source: Any, address: str) -> bytes:
    try:
        return source.read(BLOCK_BYTES)
    except (OSError, ValueError) as exc:
        raise AdapterError(f"The adapter {address} broke off while it was read: {exc}.") from exc


def _open_filesystem(address: str) -> tuple[Any, str]:
    from pyarrow import fs  # pyright: ignore[reportMissingTypeStubs]

    arrow: Any = fs
    if "://" not in address:
        return arrow.LocalFileSystem(), str(resolve_path(Path(address).expanduser()).absolute())
    try:
        return arrow.FileSystem.from_uri(address)
    except (OSError, ValueError) as exc:  # ArrowInvalid is a ValueError
        raise AdapterError(
            f"The adapter's store {address} cannot be opened: {exc}. Known are folders, s3://, gs:// and abfss://."
        ) from exc
