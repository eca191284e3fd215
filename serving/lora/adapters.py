"""LoRA adapters and their names.

An adapter is a folder in PEFT's format. Its name, such as `conductor@1a2b3c4d`, ends with a digest of its
content, so two different adapters never have the same name. This matters because vLLM's prefix cache
identifies an adapter by its name alone. If a new adapter had the name of an old one, the old one's cache
would be used for it.

This module imports only the standard library, because both training and serving use it.
"""

import hashlib
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, cast

from conductor.errors import PodiumError

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
FILES = (CONFIG, WEIGHTS)
"""Files that PEFT writes and an engine reads. Other files in the folder are not part of the adapter."""
NAME = re.compile(r"(?P<label>[A-Za-z0-9][A-Za-z0-9._-]{0,63})@(?P<digest>[0-9a-f]{8})")
BLOCK_BYTES = 1 << 20


class AdapterError(PodiumError):
    """An adapter cannot be served. The message says why, and what to do."""


def digest(folder: Path) -> str:
    """Return the first 8 hexadecimal digits of the SHA-256 of an adapter: its canonical configuration, a zero
    byte, and its weights.

    The order of keys and of module names does not matter, because PEFT writes module names in random order.
    Raise AdapterError without both files.
    """
    hashed = hashlib.sha256(_canonical(read_config(folder)).encode() + b"\0")
    try:
        with (folder / WEIGHTS).open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                hashed.update(block)
    except OSError as exc:
        raise AdapterError(
            f"The file {WEIGHTS} of the adapter {folder} cannot be read: {exc.strerror}."
        ) from exc
    return hashed.hexdigest()[:8]


def name_with_digest(label: str, folder: Path) -> str:
    """Return the name `label@digest` of the adapter in `folder`. Raise AdapterError if either is not valid."""
    name = f"{label}@{digest(folder)}"
    if not NAME.fullmatch(name):
        raise AdapterError(
            f"{label!r} is not a valid adapter label. A label must have at most 64 letters, digits, `.`, `_` and `-`, and begin with a letter or digit."
        )
    return name


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of `adapter_config.json` in `folder`, or raise AdapterError."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except OSError as exc:
        raise AdapterError(
            f"The file {CONFIG} of the adapter {folder} cannot be read: {exc.strerror}."
        ) from exc
    except ValueError as exc:
        raise AdapterError(f"The file {CONFIG} of the adapter {folder} is not valid JSON: {exc}.") from exc
    if not isinstance(config, dict):
        raise AdapterError(f"The file {CONFIG} of the adapter {folder} must contain a JSON object.")
    return cast(dict[str, Any], config)


def name_of(address: str) -> str:
    """Return the name at an address, such as `conductor@1a2b3c4d` of
    `s3://bucket/adapters/conductor@1a2b3c4d`. Raise AdapterError without a digest.
    """
    name = address.split("?")[0].rstrip("/").rsplit("/", 1)[-1]
    if not NAME.fullmatch(name):
        raise AdapterError(
            f"The adapter address {address!r} must end in a name with a digest, such as conductor@1a2b3c4d. "
            "To publish an adapter under such a name, run `podium adapter publish FOLDER`."
        )
    return name


def verify(folder: Path, name: str) -> None:
    """Check that the content of `folder` has the digest in `name`, or raise AdapterError."""
    actual = digest(folder)
    if actual != name.rpartition("@")[2]:
        raise AdapterError(
            f"The content of the adapter {name} has the digest {actual}, so it was changed after it was published, or is incomplete. "
            f"Publish a changed adapter under the new name {name.rpartition('@')[0]}@{actual}."
        )


def publish(folder: Path, where: Path, label: str) -> Path:
    """Copy an adapter, with further files such as a model card, to `where/label@digest`, and return that.

    An existing copy is not changed, because the same name means the same content. After a failure, no part
    remains. Raise AdapterError, or OSError.
    """
    published = where / name_with_digest(label, folder)
    if not published.exists():
        where.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=where, prefix=".publishing-") as part:
            copied = shutil.copytree(folder, Path(part) / published.name, copy_function=shutil.copyfile)
            copied.chmod(0o755)  # the server may run as another user than the training
            put(copied, published)
    verify(published, published.name)
    return published


def put(folder: Path, at: Path) -> None:
    """Move a complete folder to `at`, unless another process did, as the same name means the same content."""
    try:
        folder.rename(at)
    except OSError:
        if not at.is_dir():
            raise


def _canonical(config: dict[str, Any]) -> str:
    def sort_keys(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: sort_keys(each) for key, each in cast(dict[str, Any], value).items()}
        if isinstance(value, list):
            parts = [sort_keys(each) for each in cast(list[Any], value)]
            return sorted(parts) if all(isinstance(part, str) for part in parts) else parts
        return value

    return json.dumps(sort_keys(config), sort_keys=True, separators=(",", ":"))
