"""Where the settings that are served came from, and whether that has changed."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from serving.settings.overrides import settings_to_serve
from serving.settings.settings import Settings
from serving.settings.workers import API_SETTINGS, places_of

Stamp = tuple[str, tuple[tuple[str, int, int, int], ...]]
"""What changes with a settings file (its content), or with a file of keys that it names (which one it is, its time
and its size)."""


@dataclass(frozen=True, slots=True)
class SettingsSource:
    """A settings file, and what the command line said in its place.

    Args:
        path: of the YAML, on this machine.
        model, conductor: see `settings_to_serve`.
        digest: of the file as it was read at the start.
    """

    path: str
    model: str | None = None
    conductor: str | None = None
    digest: str = ""

    @classmethod
    def of(cls, path: Path, model: str | None, conductor: str | None) -> "SettingsSource":
        """The file as it is now. Replicas have another working folder; a link, such as a mounted ConfigMap's, stays
        one.
        """
        return cls(str(path.absolute()), model, conductor, _digest(str(path)))

    def read(self) -> Settings:
        """The settings as the file has them now.

        Raises:
            SettingsError: it cannot be used.
        """
        return settings_to_serve(self.path, self.model, self.conductor)

    def stamp(self, settings: Settings) -> Stamp:
        """Of the file, and of the files of keys that `settings` name. Its first part is empty while the file
        cannot be read.
        """
        return _digest(self.path), key_stamps(settings)


def key_stamps(settings: Settings) -> tuple[tuple[str, int, int, int], ...]:
    """Of every file of keys that is named and is there."""
    named = (
        name
        for worker in settings.workers
        for place in places_of(worker).values()
        if isinstance(place, API_SETTINGS)
        for name in (place.api_key_file, place.credentials_file)
        if name is not None
    )
    return tuple(found for name in dict.fromkeys(named) if (found := _stat(name)) is not None)


def _stat(name: str) -> tuple[str, int, int, int] | None:
    try:
        found = os.stat(Path(name).expanduser())  # noqa: PTH116 (through links: a mounted Secret is changed by one)
    except OSError:
        return None
    return name, found.st_ino, found.st_mtime_ns, found.st_size


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""
