"""Source of the settings: the file, the changes from the command line, and whether the file has changed."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from serving.settings.overrides import settings_to_serve
from serving.settings.settings import Settings
from serving.settings.workers import API_SETTINGS, places_of

Stamp = tuple[str, tuple[tuple[str, int, int, int], ...]]
"""Fingerprint of a settings file and of the key files that it names. It contains the digest of the settings
file, and the path, inode, modification time and size of each key file."""


@dataclass(frozen=True, slots=True)
class SettingsSource:
    """Settings file, with the changes from the command line.

    Args:
        path: path of the YAML file, on this machine.
        model, conductor: see `settings_to_serve`.
        digest: digest of the file when it was read at the start.
    """

    path: str
    model: str | None = None
    conductor: str | None = None
    digest: str = ""

    @classmethod
    def of(cls, path: Path, model: str | None, conductor: str | None) -> "SettingsSource":
        """Return the source for the file as it is now. The path becomes absolute, because replicas
        run in a different working directory. A symbolic link, such as that of a mounted ConfigMap, is not
        resolved.
        """
        return cls(str(path.absolute()), model, conductor, _digest(str(path)))

    def read(self) -> Settings:
        """Read the settings from the file again, or raise SettingsError."""
        return settings_to_serve(self.path, self.model, self.conductor)

    def stamp(self, settings: Settings) -> Stamp:
        """Return the fingerprint of the file, "" if unreadable, and of the key files in `settings`."""
        return _digest(self.path), key_stamps(settings)


def key_stamps(settings: Settings) -> tuple[tuple[str, int, int, int], ...]:
    """Return the fingerprints of the key files that `settings` name and that exist."""
    paths = (
        name
        for worker in settings.workers
        for place in places_of(worker).values()
        if isinstance(place, API_SETTINGS)
        for name in (place.api_key_file, place.credentials_file)
        if name is not None
    )
    return tuple(stamp for name in dict.fromkeys(paths) if (stamp := _stat(name)) is not None)


def _stat(name: str) -> tuple[str, int, int, int] | None:
    try:
        stat = os.stat(Path(name).expanduser())  # noqa: PTH116 (follows links: a mounted Secret changes through one)
    except OSError:
        return None
    return name, stat.st_ino, stat.st_mtime_ns, stat.st_size


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""
