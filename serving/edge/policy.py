"""The limits of the edge, and how they reach a process that is given no arguments: one environment variable,
`PODIUM_EDGE`.
"""

from collections.abc import Mapping
from typing import Any, Protocol, Self

from pydantic import ValidationError

from conductor.errors import PodiumError
from serving.edge import VARIABLE
from serving.settings.sections import HttpSettings
from serving.settings.settings import Settings, SettingsError

UPLOAD = "/v1/files"
"""A `POST` to it is a form with a file."""
FORM_BYTES = 65_536
"""Of the form, beside the file."""


class ErrorBody(Protocol):
    """Writes errors in the dialect of a path: the edge knows none."""

    def __call__(self, error: PodiumError, path: str) -> dict[str, Any]:
        """The JSON of `error` for whoever asked at `path`; empty where that is not known yet."""
        ...


class Policy(HttpSettings):
    """`http` of the settings, and the sizes of `limits`."""

    max_body_bytes: int
    max_text_bytes: int
    max_upload_bytes: int = FORM_BYTES
    """Of a body sent to `UPLOAD`."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """What `settings` say."""
        limits = settings.limits
        return cls(
            **settings.http.model_dump(),
            max_body_bytes=limits.max_body_bytes,
            max_text_bytes=limits.max_text_bytes,
            max_upload_bytes=settings.batches.max_file_bytes + FORM_BYTES,
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """What `PODIUM_EDGE` says; the defaults where it is not set.

        Raises:
            SettingsError: it is set and is no policy.
        """
        defaults = cls.of(Settings.model_construct())
        try:
            return cls.model_validate_json(environment.get(VARIABLE) or defaults.model_dump_json())
        except ValidationError as exc:
            raise SettingsError(f"The variable {VARIABLE} holds no edge policy: {exc}.") from exc
