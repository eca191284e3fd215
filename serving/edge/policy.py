"""Limits of the edge. Processes without arguments get them through the variable `PODIUM_EDGE`."""

from collections.abc import Mapping
from typing import Any, Protocol, Self

from pydantic import ValidationError

from conductor.errors import PodiumError
from serving.edge import VARIABLE
from serving.settings.sections import HttpSettings
from serving.settings.settings import Settings, SettingsError

UPLOAD = "/v1/files"
"""Path of uploads. A `POST` to it is a form with a file."""
FORM_BYTES = 65_536
"""Bytes that a form may have in addition to the file."""


class ErrorBody(Protocol):
    """Function that formats an error in the dialect of a path. The edge itself knows no dialects."""

    def __call__(self, error: PodiumError, path: str) -> dict[str, Any]:
        """Return the JSON body for `error`. `path` is the request's, or empty if it is not known yet."""
        ...


class HttpPolicy(HttpSettings):
    """Limits of the edge: the `http` settings, and the body sizes of other settings."""

    max_body_bytes: int
    max_text_bytes: int
    max_upload_bytes: int = FORM_BYTES
    """Limit for a body sent to `UPLOAD`."""

    @property
    def most_bytes(self) -> int:
        """Limit for any body."""
        return max(self.max_body_bytes, self.max_upload_bytes)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        limits = settings.limits
        return cls(
            **settings.http.model_dump(),
            max_body_bytes=limits.max_body_bytes,
            max_text_bytes=limits.max_text_bytes,
            max_upload_bytes=settings.batches.max_file_bytes + FORM_BYTES,
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Return the policy in `PODIUM_EDGE`, or the default one. Raise SettingsError if it is invalid."""
        defaults = cls.of(Settings.model_construct())
        try:
            return cls.model_validate_json(environment.get(VARIABLE) or defaults.model_dump_json())
        except ValidationError as exc:
            raise SettingsError(f"{VARIABLE} is not a valid edge policy: {exc}.") from exc
