"""API keys of workers, from an environment variable or from a file that only its owner can read.

Independent of Ray. A key is passed to the worker that uses it and is stored nowhere else.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from serving.redaction.secrets import learn_secret
from serving.settings.workers import AnthropicSettings, GeminiSettings, OpenAISettings

ApiSettings = OpenAISettings | AnthropicSettings | GeminiSettings
MAX_KEY_BYTES = 65_536


class KeyFileError(Exception):
    """An API key cannot be used. The message says why, and what to do."""


def read_key(worker: ApiSettings, environment: Mapping[str, str]) -> str | None:
    """Return the worker's key, or None if it names no variable or file, or if that is missing or empty.

    Raises:
        KeyFileError: the file cannot be read, is readable by all users, or does not hold a key.
    """
    if worker.api_key_env is not None:
        place = f"The environment variable {worker.api_key_env} (`api_key_env` of worker {worker.name!r})"
        key = _validate(place, environment.get(worker.api_key_env, "").strip())
    else:
        key = _read_file(worker.name, Path(worker.api_key_file).expanduser()) if worker.api_key_file else None
    if key is not None:
        learn_secret(key)  # so that no log, record or span shows it
    return key


def _validate(place: str, key: str) -> str | None:
    """Return `key` if it can be sent in a header, or None if it is empty.

    Raises:
        KeyFileError: it cannot. The message does not contain it.
    """
    if not (key.isascii() and key.isprintable()):
        raise KeyFileError(
            f"{place} contains a control character or a non-ASCII character. It must contain only the API key."
        )
    return key or None


def _read_file(name: str, path: Path) -> str | None:
    place = f"The `api_key_file` {path} of worker {name!r}"
    try:
        # Non-blocking: opening a named pipe would wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise KeyFileError(f"{place} is not a regular file.")
            if mode & stat.S_IRWXO:
                raise KeyFileError(
                    f"{place} must not be accessible to other users, but its mode is {stat.S_IMODE(mode):03o}. "
                    f"Run `chmod 600 {path}`. In Kubernetes, mount the Secret with `defaultMode: 0400`."
                )
            return _validate(place, file.read(MAX_KEY_BYTES).decode("utf-8-sig").strip())
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise KeyFileError(f"{place} cannot be read: {exc}.") from exc
