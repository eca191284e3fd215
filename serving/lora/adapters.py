"""LoRA adapters and their names: a folder in PEFT's form, called `conductor@1a2b3c4d` after what is in it.

The part behind the `@` is a digest of the content, so a name is never used for two things: vLLM's prefix
cache knows an adapter by its name alone, and would answer for a changed one with what it kept of the old.
Standard library only: whoever trains an adapter and whoever serves it import the same lines.
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
"""What PEFT writes and an engine reads; other files of the folder are not part of the adapter."""
NAME = re.compile(r"(?P<label>[A-Za-z0-9][A-Za-z0-9._-]{0,63})@(?P<digest>[0-9a-f]{8})")
BLOCK_BYTES = 1 << 20


class AdapterError(PodiumError):
    """An adapter cannot be served; the message says why, and what to do."""


def digest(folder: Path) -> str:
    """Of an adapter's content: 8 hexadecimal digits.

    SHA-256 over the configuration in a canonical form, a zero byte, and the bytes of the weights. Two
    configurations that differ in the order of keys or of module names only (PEFT writes sets) have one
    digest.

    Args:
        folder: with `adapter_config.json` and `adapter_model.safetensors`.

    Raises:
        AdapterError: a file is missing or no JSON object.
    """
    hashed = hashlib.sha256(_canonical(read_config(folder)).encode() + b"\0")
    try:
        with (folder / WEIGHTS).open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                hashed.update(block)
    except OSError as exc:
        raise AdapterError(f"The adapter {folder} has no readable {WEIGHTS}: {exc.strerror}.") from exc
    return hashed.hexdigest()[:8]


def name_with_digest(label: str, folder: Path) -> str:
    """The name under which `folder` may be served: `label@digest`.

    Raises:
        AdapterError: the folder is no adapter, or the label no name.
    """
    name = f"{label}@{digest(folder)}"
    if not NAME.fullmatch(name):
        raise AdapterError(
            f"{label!r} is no name for an adapter: up to 64 letters, digits, `.`, `_` and `-`."
        )
    return name


def read_config(folder: Path) -> dict[str, Any]:
    """`adapter_config.json` of `folder`.

    Raises:
        AdapterError: it is missing or no JSON object.
    """
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except OSError as exc:
        raise AdapterError(f"The adapter {folder} has no readable {CONFIG}: {exc.strerror}.") from exc
    except ValueError as exc:
        raise AdapterError(f"{CONFIG} of the adapter {folder} is no JSON: {exc}.") from exc
    if not isinstance(config, dict):
        raise AdapterError(f"{CONFIG} of the adapter {folder} is no JSON object.")
    return cast(dict[str, Any], config)


def name_of(address: str) -> str:
    """The name at the end of an address: of `s3://bucket/adapters/conductor@1a2b3c4d` it is
    `conductor@1a2b3c4d`.

    Raises:
        AdapterError: it has none that says what is in it.
    """
    name = address.split("?")[0].rstrip("/").rsplit("/", 1)[-1]
    if not NAME.fullmatch(name):
        raise AdapterError(
            f"The adapter {address!r} must end in a name such as conductor@1a2b3c4d, which says what is in it and is never used for "
            "anything else. `podium adapter publish FOLDER` gives a folder its name."
        )
    return name


def verify(folder: Path, name: str) -> None:
    """See that `folder` holds what `name` says.

    Raises:
        AdapterError: it does not, or is no adapter.
    """
    found = digest(folder)
    if found != name.rpartition("@")[2]:
        raise AdapterError(
            f"What is called {name} has the digest {found}: it was changed after it was named, or did not come whole. A name is never "
            f"used twice: publish it as {name.rpartition('@')[0]}@{found}."
        )


def publish(folder: Path, where: Path, label: str) -> Path:
    """Copy an adapter to `where`, under its name, whole or not at all.

    Args:
        folder: as PEFT's `save_pretrained` wrote it; its other files (a card, a report) come along.
        where: the folder of adapters; made if need be.
        label: the part of the name before the `@`.

    Returns:
        `where/label@digest`. Where that is there already it is the same adapter, and is left as it is.

    Raises:
        AdapterError: the folder is no adapter, or the label no name.
        OSError: it cannot be written.
    """
    published = where / name_with_digest(label, folder)
    if not published.exists():
        where.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=where, prefix=".publishing-") as part:
            copied = shutil.copytree(folder, Path(part) / published.name, copy_function=shutil.copyfile)
            copied.chmod(0o755)  # whoever serves it may be another user than whoever trained it
            put(copied, published)
    verify(published, published.name)
    return published


def put(made: Path, at: Path) -> None:
    """Rename a folder that is complete; where another did so first, theirs stays: the same name is the same
    content.

    Raises:
        OSError: it cannot be renamed.
    """
    try:
        made.rename(at)
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
